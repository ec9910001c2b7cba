// Rung 20, grid_stride. Chapter 3: seven steps in shared memory.
//
// threads   A thread adds many elements, two each time round, a whole grid apart.
// idea      Many additions a thread, then one tree: the tree's cost is spread over more elements.
// removes   Most blocks, with their trees and barriers; the second pass is small.
// wrong     The partial sums still need another launch.
// requires  A kernel compiled for each block size, 1 to 1024.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 7, multiple elements per thread
//           (reduce6)
// moves     DRAM read throughput up
// faster    than unroll_template
// command   python -m torch_reduce.ladder run --rungs unroll_template,grid_stride --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <unsigned kBlock, class T>
__global__ void grid_stride(const T* g_idata, T* g_odata, int64_t n) {
  T* sdata = dynamic_shared<T>();
  const unsigned tid = threadIdx.x;
  const int64_t grid = int64_t{kBlock} * 2 * gridDim.x;
  sdata[tid] = T(0);
  for (int64_t i = int64_t{blockIdx.x} * kBlock * 2 + tid; i < n; i += grid)
    sdata[tid] += g_idata[i] + (i + kBlock < n ? g_idata[i + kBlock] : T(0));
  __syncthreads();
  if (kBlock >= 1024) {
    if (tid < 512) sdata[tid] += sdata[tid + 512];
    __syncthreads();
  }
  if (kBlock >= 512) {
    if (tid < 256) sdata[tid] += sdata[tid + 256];
    __syncthreads();
  }
  if (kBlock >= 256) {
    if (tid < 128) sdata[tid] += sdata[tid + 128];
    __syncthreads();
  }
  if (kBlock >= 128) {
    if (tid < 64) sdata[tid] += sdata[tid + 64];
    __syncthreads();
  }
  if (tid < 32) add_last_warp<kBlock>(sdata, tid);
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// Differs from the lesson: the slides read `g_idata[i + blockSize]` untested; their blocks are at most 64, here as many as
// give each thread the elements that were asked for (32 unless told); blocks of 1024 threads, which the GPUs of the slides did
// not have; indices have 64 bits; the kernel runs again on the blocks' sums, as the lesson's slides say it should and leave to
// the reader. The slides' `volatile`, and their advice to leave out synchronisation within a warp, are not safe since Volta:
// see add_last_warp in rung.cuh.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    with_block(call.block, [&](auto block) {
      constexpr int kRoom = block.value > 32 ? block.value : 2 * block.value;  // see add_last_warp
      grid_stride<block.value><<<blocks, block.value, kRoom * sizeof(*data), stream_of(call)>>>(data, partials, n);
    });
  });
}

const Register rung("grid_stride", in_passes({32, 2, 4, 8, 16, 64, 128}, run, kTemplateBlocks));

}  // namespace

}  // namespace gpureduce::ladder
