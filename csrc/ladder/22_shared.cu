// Rung 22, shared. Chapter 4: the modern steps.
//
// threads   One element a thread.
// idea      A tree in shared memory, then one atomic a block instead of one a thread.
// removes   All but one of a block's atomics.
// wrong     A barrier a step; one load a thread.
// requires  A power of two as block; an output that holds the identity.
// source    Faster Parallel Reductions on Kepler (Justin Luitjens, NVIDIA, 2014), one atomic a block
//           (deviceReduceBlockAtomicKernel); the tree is Harris' kernel 3
// moves     DRAM read throughput up
// faster    than atomic
// command   python -m torch_reduce.ladder run --rungs atomic,shared --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class Functor, class T>
__global__ void shared(Functor op, const T* x, T* out, int64_t n) {
  __shared__ T values[1024];
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  values[tid] = i < n ? x[i] : Functor::kIdentity;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) values[tid] = Functor::combine(values[tid], values[tid + s]);
    __syncthreads();
  }
  if (tid == 0) combine_atomically(op, out, values[0]);
}

// Differs from the lesson: Luitjens' kernel adds many elements a thread and joins a block by shuffles, which come two rungs
// later: here it is one element a thread and Harris' tree, in an array for the largest block; elements after the last are the
// op's identity; indices have 64 bits; product, max and min join the blocks by compare-and-swap, since not every type has such
// an atomic.

int run(const Call& call) {
  return with_op(call, [&](auto op, const auto* x, auto* out) {
    shared<<<blocks_of(call), call.block, 0, stream_of(call)>>>(op, x, out, call.n);
  });
}

const Register rung("shared", with_atomics({1}, run));

}  // namespace

}  // namespace gpureduce::ladder
