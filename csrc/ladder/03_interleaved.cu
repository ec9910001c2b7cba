// Rung 3, interleaved. Chapter 1: in place, in global memory.
//
// threads   Thread t of the first half adds element t + block / 2, then the first quarter t + block / 4, and so on.
// idea      The stride begins at half the block and halves: neighbouring threads touch neighbouring elements in every
//           step.
// removes   Strided access: every byte of a line is used.
// wrong     Half of the threads never add; each step is a barrier and a trip through global memory.
// requires  As neighbored.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceInterleaved
// moves     global load efficiency up
// faster    than neighbored_less
// command   python -m torch_reduce.ladder run --rungs neighbored_less,interleaved --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void interleaved(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x;
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) idata[tid] += idata[tid + stride];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = idata[0];
}

// Differs from the lesson: the scratch copy is filled up with zeros to whole blocks, so that no size loses its tail and no
// thread leaves before a barrier; indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds on
// the host.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    interleaved<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("interleaved", in_place(1, run));

}  // namespace

}  // namespace gpureduce::ladder
