// Rung 26, shared_partials. Chapter 4: the modern steps.
//
// threads   As shared.
// idea      Each block writes its result to a place of its own, as in the chapters before: out[blockIdx.x].
// removes   All atomics. The additions have the same order in every run, and so a float's sum has the same bits.
// wrong     The kernel runs again on the blocks' results. A barrier per step; one load per thread.
// requires  A power of two as block; memory for one result per block.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 3, whose blocks write their sums
// faster    no: with blocks of 512 the tree takes the time, not the atomics
// command   python -m torch_reduce.ladder run --rungs shared,shared_partials --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class Functor, class T>
__global__ void shared_partials(Functor op, const T* x, T* out, int64_t n) {
  __shared__ T values[1024];
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  values[tid] = i < n ? x[i] : Functor::kIdentity;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) values[tid] = Functor::combine(values[tid], values[tid + s]);
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = values[0];
}

// Differs from the lesson: the kernel is `shared` with another last line: its array has room for the largest block, and it
// takes product, max and min; elements after the last are the op's identity, in every pass; indices have 64 bits; the kernel
// runs again on the blocks' results, as the lesson's slides say it should and leave to the reader.

int run(const Call& call) {
  return run_passes_with_op(call, [&](auto op, const auto* x, auto* out, int64_t n, unsigned blocks) {
    shared_partials<<<blocks, call.block, 0, stream_of(call)>>>(op, x, out, n);
  });
}

const Register rung("shared_partials", in_passes({1}, run, kBlocks, kAllOps));

}  // namespace

}  // namespace gpureduce::ladder
