// Rung 10, gmem. Chapter 2: shared memory.
//
// threads   One element a thread; the unrolled tree of complete_unroll_warps8, in global memory.
// idea      None: it is what smem is to be compared with.
// removes   Nothing.
// wrong     Every step of the tree loads and stores through the caches of global memory, and leaves lines there that
//           have to be written back.
// requires  A copy of the input, which it destroys; at least 64 threads a block.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 5, reduceGmem
// command   python -m torch_reduce.ladder run --rungs gmem --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void gmem(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x;
  if (blockDim.x >= 1024 && tid < 512) idata[tid] += idata[tid + 512];
  __syncthreads();
  if (blockDim.x >= 512 && tid < 256) idata[tid] += idata[tid + 256];
  __syncthreads();
  if (blockDim.x >= 256 && tid < 128) idata[tid] += idata[tid + 128];
  __syncthreads();
  if (blockDim.x >= 128 && tid < 64) idata[tid] += idata[tid + 64];
  __syncthreads();
  if (tid < 32) add_last_warp(idata, tid);
  if (tid == 0) g_odata[blockIdx.x] = idata[0];
}

// Differs from the lesson: instead of `if (idx >= n) return;` the scratch copy is filled up with zeros to whole blocks, so
// that no size loses its tail and no thread leaves before a barrier; indices have 64 bits; the kernel runs again on the
// blocks' sums, which the lesson adds on the host. The lesson's block is 128 (DIM), here it may be chosen. Its last warp keeps
// every sum in memory, behind a `volatile` pointer, which is not safe since Volta, where the threads of a warp need not run in
// step: add_last_warp in rung.cuh makes each sum in a register and stores it between two __syncwarp.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    gmem<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("gmem", in_place(1, run));

}  // namespace

}  // namespace gpureduce::ladder
