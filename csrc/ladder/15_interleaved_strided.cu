// Rung 15, interleaved_strided. Chapter 3: seven steps in shared memory.
//
// threads   The same pairs; consecutive threads add.
// idea      A strided index instead of the remainder.
// removes   The remainder; and divergence, where the compiler has not removed it: today it predicates so short a
//           body, and no warp branches apart.
// wrong     The threads of a warp touch shared memory 2 * s apart: bank conflicts, up to 32 accesses for one.
// requires  A power of two as block.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 2, interleaved addressing with bank
//           conflicts (reduce1)
// moves     branch efficiency up
// faster    than interleaved_modulo
// command   python -m torch_reduce.ladder run --rungs interleaved_modulo,interleaved_strided --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void interleaved_strided(const T* g_idata, T* g_odata, int64_t n) {
  T* sdata = dynamic_shared<T>();
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  sdata[tid] = i < n ? g_idata[i] : T(0);
  __syncthreads();
  for (unsigned s = 1; s < blockDim.x; s *= 2) {
    const unsigned index = 2 * s * tid;
    if (index < blockDim.x) sdata[index] += sdata[index + s];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// Differs from the lesson: the slides leave the ends of other sizes open: elements after the last are zeros here; indices
// have 64 bits; the kernel runs again on the blocks' sums, as the lesson's slides say it should and leave to the reader.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    interleaved_strided<<<blocks, call.block, call.block * sizeof(*data), stream_of(call)>>>(data, partials, n);
  });
}

const Register rung("interleaved_strided", in_passes({1}, run));

}  // namespace

}  // namespace gpureduce::ladder
