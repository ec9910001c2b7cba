// The second kernel: joins the partial sums that the blocks of the first kernel left, nearest neighbours first.
//
// For example 5000 outputs with 20 partial sums each: `threads` is 4, and a block of 128 threads takes 32 outputs. Thread 0
// loads partial sums 0-7 of its output and joins them in registers, thread 1 does so with 8-15, thread 2 with 16-19 and
// padding, and thread 3 has padding alone. Shuffles join the four threads, and thread 0 finishes, rounds and writes the result.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

template <class Acc, int kRank>
struct JoinArgs {
  const Acc* partials;
  int64_t output_stride, split_stride;  // in partials
  int64_t outputs, count;               // `count`: partial sums per output
  int32_t threads;                      // per output; a power of two
  Output<Acc, AllPaths> output;
  Nest<kRank> kept;

  __device__ __forceinline__ void write(int64_t index, uint32_t run, Acc v) const {
    output.write_at(output.partial ? Offsets{} : kept.at(index), run * outputs + index, v);
  }
};

// A thread takes kJoinRun neighbouring partial sums, `threads` threads make one result, and a block takes several outputs.
// Further results of an output belong to further blocks along y and z.
template <class Acc, int kRank>
__global__ void __launch_bounds__(1024) join_partials(const __grid_constant__ JoinArgs<Acc, kRank> a) {
  __shared__ Acc slots[kWarp];
  const int shift = __ffs(a.threads) - 1;
  const int group = threadIdx.x >> shift, groups = blockDim.x >> shift, member = threadIdx.x & (a.threads - 1);
  const uint32_t run = blockIdx.z * gridDim.y + blockIdx.y;
  const int64_t output = int64_t{blockIdx.x} * groups + group, first = (int64_t{run} * a.threads + member) * kJoinRun;
  const Acc* partials = a.partials + output * a.output_stride + first * a.split_stride;
  const int count = output < a.outputs ? static_cast<int>(min(a.count - first, int64_t{kJoinRun})) : 0;
  wait_for_previous_kernel();
  allow_next_kernel();
  Acc v[kJoinRun];
#pragma unroll
  for (int i = 0; i < kJoinRun; ++i) v[i] = i < count ? partials[i * a.split_stride] : padding<Acc>();
  Acc sum = join_neighbours(v);
  if (block_join(sum, a.threads, slots) && output < a.outputs && first < a.count) a.write(output, run, sum);
}

// The same for few outputs, one block each, whose partial sums are contiguous. It does little before its loads.
template <class Acc>
__global__ void __launch_bounds__(1024) join_rows(const Acc* partials, int count, Offsets pitch, Output<Acc, AllPaths> output) {
  __shared__ Acc slots[kWarp];
  const int thread = threadIdx.x, left = count - thread * kJoinRun;
  const Acc* thread_partials = partials + int64_t{blockIdx.x} * count + thread * kJoinRun;
  wait_for_previous_kernel();
  allow_next_kernel();
  Acc v[kJoinRun];
#pragma unroll
  for (int i = 0; i < kJoinRun; ++i) v[i] = i < left ? thread_partials[i] : padding<Acc>();
  Acc sum = warp_join(join_neighbours(v));
  if (blockDim.x > kWarp) {
    if (thread % kWarp == 0) slots[thread / kWarp] = sum;
    __syncthreads();
    if (thread >= kWarp) return;
    sum = warp_join(thread < static_cast<int>(blockDim.x) / kWarp ? slots[thread] : padding<Acc>());
  }
  if (thread == 0) output.write_at(Offsets{blockIdx.x * pitch.in, blockIdx.x * pitch.out}, 0, sum);
}

// The same if neighbouring outputs have neighbouring partial sums. A warp reads whole lines, of 32 outputs, and each warp of
// the block takes another run of kJoinRun. There is one result per output.
template <class Acc, int kRank>
__global__ void __launch_bounds__(1024) join_columns(const __grid_constant__ JoinArgs<Acc, kRank> a) {
  __shared__ Acc slots[kWarp][kWarp + 1];
  const int column = threadIdx.x % kWarp, member = threadIdx.x / kWarp, first = member * kJoinRun;
  const int64_t base = int64_t{blockIdx.x} * kWarp;
  const Acc* partials = a.partials + base + column + first * a.split_stride;
  const int count = base + column < a.outputs ? static_cast<int>(a.count) - first : 0;
  wait_for_previous_kernel();
  allow_next_kernel();
  Acc v[kJoinRun];
#pragma unroll
  for (int i = 0; i < kJoinRun; ++i) v[i] = i < count ? partials[i * a.split_stride] : padding<Acc>();
  slots[member][column] = join_neighbours(v);
  __syncthreads();
  const int64_t output = base + threadIdx.x / a.threads;
  const Acc sum = warp_join(slots[threadIdx.x % a.threads][threadIdx.x / a.threads], 1, a.threads);
  if (threadIdx.x % a.threads == 0 && output < a.outputs) a.write(output, 0, sum);
}

}  // namespace gpureduce::cuda
