// Rung 7, unroll_warps8. Chapter 1: in place, in global memory.
//
// threads   As unrolling8, but the last six steps are those of one warp, without barriers for the block.
// idea      What one warp does alone needs no __syncthreads.
// removes   Six barriers a block.
// wrong     The loop over the other steps is still a loop, with its counter and its test.
// requires  At least 64 threads a block; as neighbored.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceUnrollWarps8
// moves     barrier stalls down
// faster    no: on an H200 the barriers of one block pass while other blocks load; what they cost is no longer seen.
// command   python -m torch_reduce.ladder run --rungs unrolling8,unroll_warps8 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void unroll_warps8(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x * 8;
  T sum = idata[tid];
#pragma unroll
  for (unsigned k = 1; k < 8; ++k) sum += idata[tid + k * blockDim.x];
  idata[tid] = sum;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 32; stride /= 2) {
    if (tid < stride) idata[tid] += idata[tid + stride];
    __syncthreads();
  }
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
    unroll_warps8<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("unroll_warps8", in_place(8, run));

}  // namespace

}  // namespace gpureduce::ladder
