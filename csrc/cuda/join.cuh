// The second kernel: joins the partial sums that the blocks of the first one left, nearest neighbours first.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

template <class Acc, int kRank>
struct JoinArgs {
  const Acc* partials;
  int64_t output_stride, split_stride;  // in partials
  int64_t outputs, count;               // partial sums an output
  int32_t threads;                      // an output; a power of two
  Output<Acc, AnyResult> output;
  Nest<kRank> kept;

  __device__ __forceinline__ void write(int64_t index, uint32_t run, Acc v) const {
    output.write_at(output.partial ? Offsets{} : kept.at(index), run * outputs + index, v);
  }
};

// A thread takes kJoinRun neighbouring partial sums, `threads` threads the run of one result, and a block several outputs.
// Further runs of an output are further blocks', along y and z.
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

// The same for a few outputs, a block each, whose partial sums stand one after the other: with little before the loads.
template <class Acc>
__global__ void __launch_bounds__(1024)
    join_rows(const Acc* partials, int count, Offsets pitch, Output<Acc, AnyResult> output) {
  __shared__ Acc slots[kWarp];
  const int thread = threadIdx.x, left = count - thread * kJoinRun;
  const Acc* mine = partials + int64_t{blockIdx.x} * count + thread * kJoinRun;
  wait_for_previous_kernel();
  allow_next_kernel();
  Acc v[kJoinRun];
#pragma unroll
  for (int i = 0; i < kJoinRun; ++i) v[i] = i < left ? mine[i] : padding<Acc>();
  Acc sum = warp_join(join_neighbours(v));
  if (blockDim.x > kWarp) {
    if (thread % kWarp == 0) slots[thread / kWarp] = sum;
    __syncthreads();
    if (thread >= kWarp) return;
    sum = warp_join(thread < static_cast<int>(blockDim.x) / kWarp ? slots[thread] : padding<Acc>());
  }
  if (thread == 0) output.write_at(Offsets{blockIdx.x * pitch.in, blockIdx.x * pitch.out}, 0, sum);
}

// The same for outputs whose partial sums stand side by side: a warp reads whole lines of them, and the block's warps further
// runs of kJoinRun. One result an output.
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
