// Rung 24, warp_shuffle. Chapter 4: the modern steps.
//
// threads   One element a thread; a warp joins its 32 values in registers, the first warp joins one value a warp.
// idea      Threads of a warp hand each other registers: __shfl_down_sync.
// removes   Shared memory but for one value a warp, and all barriers but one.
// wrong     One load a thread, then a tree: the memory waits for the tree.
// requires  Whole warps; an output that holds the identity.
// source    Faster Parallel Reductions on Kepler (Justin Luitjens, NVIDIA, 2014), blockReduceSum
// moves     barrier stalls down
// faster    than shared_unrolled
// command   python -m torch_reduce.ladder run --rungs shared_unrolled,warp_shuffle --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class Functor, class T>
__global__ void warp_shuffle(Functor op, const T* x, T* out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const T value = combine_by_shuffles(op, i < n ? x[i] : Functor::kIdentity);
  if (threadIdx.x == 0) combine_atomically(op, out, value);
}

// Differs from the lesson: the lesson's __shfl_down is gone since Volta: __shfl_down_sync names the threads that take part;
// one element a thread and one atomic a block, where the lesson adds many and launches a second time; the two steps are
// combine_by_shuffles in rung.cuh, which multi_element uses as well; indices have 64 bits; product, max and min join the
// blocks by compare-and-swap, since not every type has such an atomic.

int run(const Call& call) {
  return with_op(call, [&](auto op, const auto* x, auto* out) {
    warp_shuffle<<<blocks_of(call), call.block, 0, stream_of(call)>>>(op, x, out, call.n);
  });
}

const Register rung("warp_shuffle", with_atomics({1}, run));

}  // namespace

}  // namespace gpureduce::ladder
