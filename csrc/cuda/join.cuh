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
__device__ __noinline__ void store_any(void* out, int64_t index, DType t, Acc v) {
  store(out, index, t, v);
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
#pragma unroll
    for (int step = 1; step < kJoinRun; step *= 2) {
#pragma unroll
      for (int i = 0; i < kJoinRun; i += 2 * step) v[i] = v[i] + v[i + step];
    }
    if (block_join(v[0], a.threads, slots) && index < all) {
      if (a.output.partials) a.output.partials[run * a.outputs + output] = v[0];
      else store_any(a.output.result, a.kept.at(output).out, a.output.dtype, v[0]);
    }
    __syncthreads();  // the slots are free again
  }
}

}  // namespace gpureduce::cuda
