// Rung 27, shared_unrolled_partials. Chapter 4: the modern steps.
//
// threads   As shared_unrolled.
// idea      Each block writes its result to a place of its own, as in shared_partials.
// removes   All atomics.
// wrong     A warp still talks to itself through memory. The kernel runs again on the blocks' results.
// requires  At least 64 threads per block; memory for one result per block.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 5, whose blocks write their sums
// faster    no: with blocks of 512 the tree takes the time, not the atomics
// command   python -m torch_reduce.ladder run --rungs shared_unrolled,shared_unrolled_partials --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class Functor, class T>
__global__ void shared_unrolled_partials(Functor op, const T* x, T* out, int64_t n) {
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
  if (tid == 0) out[blockIdx.x] = values[0];
}

// Differs from the lesson: the kernel is `shared_unrolled` with another last line: `volatile` is not enough since Volta, so
// __syncwarp stands between reading and writing; one element per thread, where kernel 5 has two; its array has room for the
// largest block, and it takes product, max and min; elements after the last are the op's identity, in every pass; indices
// have 64 bits; the kernel runs again on the blocks' results, as the lesson's slides say it should and leave to the reader.

int run(const Call& call) {
  return run_passes_with_op(call, [&](auto op, const auto* x, auto* out, int64_t n, unsigned blocks) {
    shared_unrolled_partials<<<blocks, call.block, 0, stream_of(call)>>>(op, x, out, n);
  });
}

const Register rung("shared_unrolled_partials", in_passes({1}, run, kBlocks, kAllOps));

}  // namespace

}  // namespace gpureduce::ladder
