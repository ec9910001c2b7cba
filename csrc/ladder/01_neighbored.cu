// Rung 1, neighbored. Chapter 1: in place, in global memory.
//
// threads   One element a thread. Of each pair of neighbours the even thread adds; then of each pair of pairs, and so
//           on.
// idea      A tree in each block: log2(block) steps instead of block - 1 additions one after the other.
// removes   The one thread that adds everything (host_recursive).
// wrong     tid % (2 * stride) leaves every warp with a few threads at work, in every step; each step goes through
//           global memory; the remainder is slow.
// requires  A power of two as block; a copy of the input, which it destroys.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceNeighbored
// command   python -m torch_reduce.ladder run --rungs neighbored --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void neighbored(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x;  // this block's elements
  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {
    if (tid % (2 * stride) == 0) idata[tid] += idata[tid + stride];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = idata[0];
}

// Differs from the lesson: the printed listing tests an index that it never sets (`if (idx >= n) return;`), and threads that
// return miss the barriers: here the scratch copy is filled up with zeros to whole blocks, so that no size loses its tail and
// no thread leaves before a barrier; indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds
// on the host.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    neighbored<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("neighbored", in_place(1, run));

}  // namespace

}  // namespace gpureduce::ladder
