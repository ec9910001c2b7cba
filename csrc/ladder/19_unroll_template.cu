// Rung 19, unroll_template. Chapter 3: seven steps in shared memory.
//
// threads   As unroll_last_warp.
// idea      The block size is a template parameter: all steps are written down, those that are not needed vanish.
// removes   The loop and the barriers of steps that a block does not have.
// wrong     Two elements a thread: most of a block's life is its tree.
// requires  A kernel compiled for each block size, 1 to 1024.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 6, completely unrolled (reduce5)
// moves     instructions per warp down
// faster    than unroll_last_warp
// command   python -m torch_reduce.ladder run --rungs unroll_last_warp,unroll_template --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <unsigned kBlock, class T>
__global__ void unroll_template(const T* g_idata, T* g_odata, int64_t n) {
  T* sdata = dynamic_shared<T>();
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * kBlock * 2 + tid;
  T sum = i < n ? g_idata[i] : T(0);
  if (i + kBlock < n) sum += g_idata[i + kBlock];
  sdata[tid] = sum;
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

// Differs from the lesson: the slides leave the ends of other sizes open: elements after the last are zeros here; blocks of
// 1024 threads, which the GPUs of the slides did not have; indices have 64 bits; the kernel runs again on the blocks' sums, as
// the lesson's slides say it should and leave to the reader. The slides' `volatile`, and their advice to leave out
// synchronisation within a warp, are not safe since Volta: see add_last_warp in rung.cuh.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    with_block(call.block, [&](auto block) {
      constexpr int kRoom = block.value > 32 ? block.value : 2 * block.value;  // see add_last_warp
      unroll_template<block.value><<<blocks, block.value, kRoom * sizeof(*data), stream_of(call)>>>(data, partials, n);
    });
  });
}

const Register rung("unroll_template", in_passes({2}, run, kTemplateBlocks));

}  // namespace

}  // namespace gpureduce::ladder
