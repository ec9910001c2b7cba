// Rung 16, sequential_addressing. Chapter 3: seven steps in shared memory.
//
// threads   Thread t adds element t + s; s halves.
// idea      Neighbouring threads touch neighbouring words.
// removes   Bank conflicts.
// wrong     Half of the threads do nothing but load.
// requires  A power of two as block.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 3, sequential addressing (reduce2)
// moves     bank conflicts down
// faster    than interleaved_strided
// command   python -m torch_reduce.ladder run --rungs interleaved_strided,sequential_addressing --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void sequential_addressing(const T* g_idata, T* g_odata, int64_t n) {
  T* sdata = dynamic_shared<T>();
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + tid;
  sdata[tid] = i < n ? g_idata[i] : T(0);
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// Differs from the lesson: the slides leave the ends of other sizes open: elements after the last are zeros here; indices
// have 64 bits; the kernel runs again on the blocks' sums, as the lesson's slides say it should and leave to the reader.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    sequential_addressing<<<blocks, call.block, call.block * sizeof(*data), stream_of(call)>>>(data, partials, n);
  });
}

const Register rung("sequential_addressing", in_passes({1}, run));

}  // namespace

}  // namespace gpureduce::ladder
