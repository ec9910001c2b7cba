// Rung 8, complete_unroll_warps8. Chapter 1: in place, in global memory.
//
// threads   As unroll_warps8.
// idea      A block has at most 1024 threads, so all steps can be written down: no loop.
// removes   The loop's counter, test and jump.
// wrong     Each step asks at run time whether the block is large enough for it, and every block passes four
//           barriers, even where it is not.
// requires  At least 64 threads a block; as neighbored.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceCompleteUnrollWarps8
// moves     instructions per warp down
// faster    no: on an H200 the loop's few instructions are hidden behind the loads.
// command   python -m torch_reduce.ladder run --rungs unroll_warps8,complete_unroll_warps8 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void complete_unroll_warps8(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x * 8;
  T sum = idata[tid];
#pragma unroll
  for (unsigned k = 1; k < 8; ++k) sum += idata[tid + k * blockDim.x];
  idata[tid] = sum;
  __syncthreads();
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

// Differs from the lesson: the lesson unrolls only where all blocks of data are complete (`if (idx + 7 * blockDim.x < n)`) and
// drops the others: here the scratch copy is filled up with zeros to whole blocks, so that no size loses its tail and no
// thread leaves before a barrier; indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds on
// the host. The eight loads are an unrolled loop, where the lesson names eight variables. The last warp's `volatile` is not
// safe since Volta, where the threads of a warp need not run in step: see add_last_warp in rung.cuh.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    complete_unroll_warps8<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("complete_unroll_warps8", in_place(8, run));

}  // namespace

}  // namespace gpureduce::ladder
