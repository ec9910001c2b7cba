// Rung 28, warp_shuffle_partials. Chapter 4: the modern steps.
//
// threads   As warp_shuffle.
// idea      Each block writes its result to a place of its own, as in shared_partials.
// removes   All atomics.
// wrong     One load per thread, then a tree: the memory waits for the tree. The kernel runs again on the blocks' results.
// requires  Whole warps; memory for one result per block.
// source    Faster Parallel Reductions on Kepler (Justin Luitjens, NVIDIA, 2014), deviceReduceKernel, which is launched
//           twice
// faster    no: there was one atomic a block, and the tree takes the time
// command   python -m torch_reduce.ladder run --rungs warp_shuffle,warp_shuffle_partials --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class Functor, class T>
__global__ void warp_shuffle_partials(Functor op, const T* x, T* out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const T value = combine_by_shuffles(op, i < n ? x[i] : Functor::kIdentity);
  if (threadIdx.x == 0) out[blockIdx.x] = value;
}

// Differs from the lesson: the lesson's __shfl_down is gone since Volta: __shfl_down_sync names the threads that take part;
// one element per thread, where the lesson adds many: so the kernel may run more than twice; the block's steps are
// combine_by_shuffles in rung.cuh; indices have 64 bits; the kernel takes product, max and min as well.

int run(const Call& call) {
  return run_passes_with_op(call, [&](auto op, const auto* x, auto* out, int64_t n, unsigned blocks) {
    warp_shuffle_partials<<<blocks, call.block, 0, stream_of(call)>>>(op, x, out, n);
  });
}

const Register rung("warp_shuffle_partials", in_passes({1}, run, kBlocks, kAllOps));

}  // namespace

}  // namespace gpureduce::ladder
