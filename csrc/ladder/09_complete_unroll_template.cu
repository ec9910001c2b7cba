// Rung 9, complete_unroll_template. Chapter 1: in place, in global memory.
//
// threads   As unroll_warps8.
// idea      The block size is a template parameter.
// removes   The tests of the block size: the compiler knows their answers, and drops the steps that a block does not
//           need.
// wrong     The tree itself is still in global memory.
// requires  A kernel compiled for each block size; as neighbored.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceCompleteUnroll
// moves     instructions per warp down
// faster    no: half of the instructions go, but on an H200 nobody waits for instructions any more.
// command   python -m torch_reduce.ladder run --rungs complete_unroll_warps8,complete_unroll_template --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <unsigned kBlock, class T>
__global__ void complete_unroll_template(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * kBlock * 8;
  T sum = idata[tid];
#pragma unroll
  for (unsigned k = 1; k < 8; ++k) sum += idata[tid + k * kBlock];
  idata[tid] = sum;
  __syncthreads();
  if (kBlock >= 1024 && tid < 512) idata[tid] += idata[tid + 512];
  __syncthreads();
  if (kBlock >= 512 && tid < 256) idata[tid] += idata[tid + 256];
  __syncthreads();
  if (kBlock >= 256 && tid < 128) idata[tid] += idata[tid + 128];
  __syncthreads();
  if (kBlock >= 128 && tid < 64) idata[tid] += idata[tid + 64];
  __syncthreads();
  if (tid < 32) add_last_warp<kBlock>(idata, tid);
  if (tid == 0) g_odata[blockIdx.x] = idata[0];
}

// Differs from the lesson: the lesson unrolls only where all blocks of data are complete (`if (idx + 7 * blockDim.x < n)`) and
// drops the others: here the scratch copy is filled up with zeros to whole blocks, so that no size loses its tail and no
// thread leaves before a barrier; indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds on
// the host. The eight loads are an unrolled loop, where the lesson names eight variables. The last warp's `volatile` is not
// safe since Volta, where the threads of a warp need not run in step: see add_last_warp in rung.cuh. The book's template is
// compiled for blocks of 64 to 1024; here for 1 to 32 as well, whose last warp has fewer steps, as in the slides' template.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    with_block(call.block, [&](auto block) {
      complete_unroll_template<block.value><<<blocks, block.value, 0, stream_of(call)>>>(data, partials);
    });
  });
}

const Register rung("complete_unroll_template", in_place(8, run, kTemplateBlocks));

}  // namespace

}  // namespace gpureduce::ladder
