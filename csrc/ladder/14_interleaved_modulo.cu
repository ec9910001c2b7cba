// Rung 14, interleaved_modulo. Chapter 3: seven steps in shared memory.
//
// threads   One element a thread, loaded into shared memory; of each pair the even thread adds, as in neighbored.
// idea      Neighbored's tree in shared memory: Harris' first kernel.
// removes   Nothing: the chapter begins anew.
// wrong     The remainder is slow, and only every (2 * s)-th thread works: warps stay busy with a few threads each,
//           until the end.
// requires  A power of two as block.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 1, interleaved addressing with
//           divergent branching (reduce0)
// command   python -m torch_reduce.ladder run --rungs interleaved_modulo --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void interleaved_modulo(const T* g_idata, T* g_odata, int64_t n) {
  T* sdata = dynamic_shared<T>();
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  sdata[tid] = i < n ? g_idata[i] : T(0);
  __syncthreads();
  for (unsigned s = 1; s < blockDim.x; s *= 2) {
    if (tid % (2 * s) == 0) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// Differs from the lesson: the slides leave the ends of other sizes open: elements after the last are zeros here; indices
// have 64 bits; the kernel runs again on the blocks' sums, as the lesson's slides say it should and leave to the reader.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    interleaved_modulo<<<blocks, call.block, call.block * sizeof(*data), stream_of(call)>>>(data, partials, n);
  });
}

const Register rung("interleaved_modulo", in_passes({1}, run));

}  // namespace

}  // namespace gpureduce::ladder
