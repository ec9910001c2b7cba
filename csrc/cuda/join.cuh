// The second kernel: joins the partial sums that the blocks of the first one left, nearest neighbours first.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

template <class Acc, int kRank>
struct JoinArgs {
  const Acc* partials;
  Output<Acc> output;
  int64_t outputs, count;               // partial sums an output
  int64_t output_stride, split_stride;  // in partials
  int64_t results;                      // what is left of them an output
  int32_t threads;                      // an output; a power of two
  Nest<kRank> kept;
};

// The one kernel that rounds to every dtype.
template <class Acc>
__device__ __noinline__ void store_any(const Output<Acc>& output, int64_t index, Acc v) {
  if (output.divisor == 1) store(output.result, index, output.dtype, v);
  else store(output.result, index, output.dtype, quotient(v, output.divisor));
}

// A thread takes kJoinRun neighbouring partial sums, `threads` threads the run of one result, and a block several results.
template <class Acc, int kRank>
__global__ void __launch_bounds__(1024) join_partials(const __grid_constant__ JoinArgs<Acc, kRank> a) {
  __shared__ Acc slots[kWarp];
  const int shift = __ffs(a.threads) - 1;
  const int group = threadIdx.x >> shift, groups = blockDim.x >> shift, member = threadIdx.x & (a.threads - 1);
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t all = a.outputs * a.results;
  for (int64_t base = int64_t{blockIdx.x} * groups; base < all; base += int64_t{gridDim.x} * groups) {
    const int64_t index = base + group;
    const int64_t run = a.results > 1 ? index / a.outputs : 0, output = a.results > 1 ? index % a.outputs : index;
    const int64_t first = (run * a.threads + member) * kJoinRun;
    Acc v[kJoinRun];
#pragma unroll
    for (int i = 0; i < kJoinRun; ++i) {
      v[i] = padding<Acc>();
      if (index < all && first + i < a.count) v[i] = a.partials[output * a.output_stride + (first + i) * a.split_stride];
    }
    Acc sum = join_neighbours(v);
    if (block_join(sum, a.threads, slots) && index < all) {
      if (a.output.partials) a.output.partials[run * a.outputs + output] = sum;
      else store_any(a.output, a.kept.at(output).out, sum);
    }
    __syncthreads();  // the slots are free again
  }
}

// The same for outputs whose partial sums stand side by side: a warp reads whole lines of them, and the block's warps further
// runs of kJoinRun. One result an output.
template <class Acc, int kRank>
__global__ void __launch_bounds__(1024) join_columns(const __grid_constant__ JoinArgs<Acc, kRank> a) {
  __shared__ Acc slots[kWarp][kWarp + 1];
  const int column = threadIdx.x % kWarp, member = threadIdx.x / kWarp;
  const int64_t first = int64_t{member} * kJoinRun;
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int64_t base = int64_t{blockIdx.x} * kWarp; base < a.outputs; base += int64_t{gridDim.x} * kWarp) {
    Acc v[kJoinRun];
#pragma unroll
    for (int i = 0; i < kJoinRun; ++i) {
      v[i] = padding<Acc>();
      if (base + column < a.outputs && first + i < a.count) v[i] = a.partials[base + column + (first + i) * a.split_stride];
    }
    slots[member][column] = join_neighbours(v);
    __syncthreads();
    const int64_t output = base + threadIdx.x / a.threads;
    const Acc sum = warp_join(slots[threadIdx.x % a.threads][threadIdx.x / a.threads], 1, a.threads);
    if (threadIdx.x % a.threads == 0 && output < a.outputs) store_any(a.output, a.kept.at(output).out, sum);
    __syncthreads();  // the slots are free again
  }
}

}  // namespace gpureduce::cuda
