// Rung 5, unrolling4. Chapter 1: in place, in global memory.
//
// threads   A block takes four blocks of data, each thread four elements.
// idea      Four independent loads in flight a thread, a quarter of the blocks.
// removes   Half of what unrolling2 still spends on barriers and idle threads.
// wrong     The tree is still nine barriers long and in global memory.
// requires  As neighbored.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceUnrolling4
// moves     DRAM read throughput up
// faster    than unrolling2
// command   python -m torch_reduce.ladder run --rungs unrolling2,unrolling4 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void unrolling4(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x * 4;
  T sum = idata[tid];
  sum += idata[tid + blockDim.x];
  sum += idata[tid + 2 * blockDim.x];
  sum += idata[tid + 3 * blockDim.x];
  idata[tid] = sum;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) idata[tid] += idata[tid + stride];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = idata[0];
}

// Differs from the lesson: the lesson unrolls only where all blocks of data are complete (`if (idx + 3 * blockDim.x < n)`) and
// drops the others: here the scratch copy is filled up with zeros to whole blocks, so that no size loses its tail and no
// thread leaves before a barrier; indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds on
// the host. The four elements are added to one register in the lesson's order, where it names four variables.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    unrolling4<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("unrolling4", in_place(4, run));

}  // namespace

}  // namespace gpureduce::ladder
