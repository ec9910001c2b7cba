// The second kernel: joins the partial sums that the blocks of the first one left, nearest neighbours first.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

template <class Acc>
struct JoinArgs {
  const Acc* partials;
  Output<Acc> output;
  int64_t outputs, count;                // partial sums an output
  int64_t output_stride, split_stride;   // in partials
  int64_t results;                       // what is left of them an output
  int32_t threads;                       // an output; a power of two
  Nest kept;
};

// A thread takes kJoinRun neighbouring partial sums, `threads` threads the run of one result, and a block several results.
template <class Acc>
__global__ void __launch_bounds__(1024) join_partials(const __grid_constant__ JoinArgs<Acc> a) {
  __shared__ Acc slots[kWarp];
  const int group = threadIdx.x / a.threads, groups = blockDim.x / a.threads, member = threadIdx.x % a.threads;
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
    if (block_join(v[0], a.threads, slots) && index < all) a.output.write(a.kept, output, run * a.outputs + output, v[0]);
    __syncthreads();  // the slots are free again
  }
}

}  // namespace gpureduce::cuda
