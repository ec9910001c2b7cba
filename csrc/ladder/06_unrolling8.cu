// Rung 6, unrolling8. Chapter 1: in place, in global memory.
//
// threads   A block takes eight blocks of data, each thread eight elements.
// idea      Eight independent loads in flight a thread.
// removes   Half of what unrolling4 still spends on barriers and idle threads.
// wrong     The last steps of the tree have a barrier for the whole block, though only one warp is at work.
// requires  As neighbored.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceUnrolling8
// moves     DRAM read throughput up
// faster    than unrolling4
// command   python -m torch_reduce.ladder run --rungs unrolling4,unrolling8 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void unrolling8(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x * 8;
  T sum = idata[tid];
  sum += idata[tid + blockDim.x];
  sum += idata[tid + 2 * blockDim.x];
  sum += idata[tid + 3 * blockDim.x];
  sum += idata[tid + 4 * blockDim.x];
  sum += idata[tid + 5 * blockDim.x];
  sum += idata[tid + 6 * blockDim.x];
  sum += idata[tid + 7 * blockDim.x];
  idata[tid] = sum;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) idata[tid] += idata[tid + stride];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = idata[0];
}

// Differs from the lesson: the lesson unrolls only where all blocks of data are complete (`if (idx + 7 * blockDim.x < n)`) and
// drops the others: here the scratch copy is filled up with zeros to whole blocks, so that no size loses its tail and no
// thread leaves before a barrier; indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds on
// the host. The eight elements are added to one register in the lesson's order, where it names eight variables.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    unrolling8<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("unrolling8", in_place(8, run));

}  // namespace

}  // namespace gpureduce::ladder
