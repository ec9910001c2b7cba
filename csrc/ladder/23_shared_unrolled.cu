// Rung 23, shared_unrolled. Chapter 4: the modern steps.
//
// threads   As shared; the last six steps by one warp.
// idea      No barriers where one warp works alone.
// removes   Six barriers a block.
// wrong     A warp still talks to itself through memory.
// requires  At least 64 threads a block; an output that holds the identity.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 5, with one atomic a block as in
//           Faster Parallel Reductions on Kepler (Justin Luitjens, NVIDIA, 2014)
// moves     barrier stalls down
// faster    than shared
// command   python -m torch_reduce.ladder run --rungs shared,shared_unrolled --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class Functor, class T>
__global__ void shared_unrolled(Functor op, const T* x, T* out, int64_t n) {
  __shared__ T values[1024];
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  values[tid] = i < n ? x[i] : Functor::kIdentity;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 32; s /= 2) {
    if (tid < s) values[tid] = Functor::combine(values[tid], values[tid + s]);
    __syncthreads();
  }
  if (tid < 32) {
#pragma unroll
    for (unsigned s = 32; s > 0; s /= 2) {
      const T value = Functor::combine(values[tid], values[tid + s]);
      __syncwarp();
      values[tid] = value;
      __syncwarp();
    }
  }
  if (tid == 0) combine_atomically(op, out, values[0]);
}

// Differs from the lesson: `volatile` is not enough since Volta: __syncwarp between reading and writing, as in add_last_warp
// of rung.cuh; one element a thread, where kernel 5 has two; elements after the last are the op's identity; indices have 64
// bits; product, max and min join the blocks by compare-and-swap, since not every type has such an atomic.

int run(const Call& call) {
  return with_op(call, [&](auto op, const auto* x, auto* out) {
    shared_unrolled<<<blocks_of(call), call.block, 0, stream_of(call)>>>(op, x, out, call.n);
  });
}

const Register rung("shared_unrolled", with_atomics({1}, run));

}  // namespace

}  // namespace gpureduce::ladder
