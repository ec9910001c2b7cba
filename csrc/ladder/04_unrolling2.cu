// Rung 4, unrolling2. Chapter 1: in place, in global memory.
//
// threads   A block takes two blocks of data: each thread first adds the second one's element to the first one's.
// idea      Two elements a thread: half as many blocks, and two independent loads in flight a thread before the first
//           barrier.
// removes   The half of the threads that never added; half of the barriers for the same data.
// wrong     Two loads a thread are too few to keep the memory busy.
// requires  As neighbored.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceUnrolling2
// moves     DRAM read throughput up
// faster    than interleaved
// command   python -m torch_reduce.ladder run --rungs interleaved,unrolling2 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void unrolling2(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x * 2;
  T sum = idata[tid];
  sum += idata[tid + blockDim.x];
  idata[tid] = sum;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) idata[tid] += idata[tid + stride];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = idata[0];
}

// Differs from the lesson: the lesson unrolls only where all blocks of data are complete (`if (idx + 1 * blockDim.x < n)`) and
// drops the others: here the scratch copy is filled up with zeros to whole blocks, so that no size loses its tail and no
// thread leaves before a barrier; indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds on
// the host. The first sum is written in two steps, the lesson's `g_idata[idx] += …` in one: both are stored once.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    unrolling2<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("unrolling2", in_place(2, run));

}  // namespace

}  // namespace gpureduce::ladder
