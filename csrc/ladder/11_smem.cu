// Rung 11, smem. Chapter 2: shared memory.
//
// threads   One element a thread.
// idea      The tree works on a copy of the block's data in shared memory.
// removes   All traffic through global memory, and through the cache before it, but one load an element and one store
//           a block; the input stays as it is.
// wrong     One load a thread; then the block waits for itself.
// requires  Shared memory for 1024 elements a block; at least 64 threads.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 5, reduceSmem
// moves     global load throughput down
// faster    no: since Volta, global memory is cached in the same SRAM that shared memory is made of, and with one
//           element a thread a block mostly waits for its one load.
// command   python -m torch_reduce.ladder run --rungs gmem,smem --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void smem(const T* g_idata, T* g_odata, int64_t n) {
  __shared__ T smem[1024];
  const unsigned tid = threadIdx.x;
  const int64_t idx = int64_t{blockIdx.x} * blockDim.x + tid;
  smem[tid] = idx < n ? g_idata[idx] : T(0);
  __syncthreads();
  if (blockDim.x >= 1024 && tid < 512) smem[tid] += smem[tid + 512];
  __syncthreads();
  if (blockDim.x >= 512 && tid < 256) smem[tid] += smem[tid + 256];
  __syncthreads();
  if (blockDim.x >= 256 && tid < 128) smem[tid] += smem[tid + 128];
  __syncthreads();
  if (blockDim.x >= 128 && tid < 64) smem[tid] += smem[tid + 64];
  __syncthreads();
  if (tid < 32) add_last_warp(smem, tid);
  if (tid == 0) g_odata[blockIdx.x] = smem[0];
}

// Differs from the lesson: instead of `if (idx >= n) return;` a block that has fewer elements takes zeros for the others, so
// that no thread returns before a barrier; the array has room for the largest block (the lesson's DIM, 128, is the block it is
// compiled for); indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds on the host. The
// lesson's last warp keeps every sum in shared memory, behind a `volatile` pointer, which is not safe since Volta, where the
// threads of a warp need not run in step: add_last_warp in rung.cuh makes each sum in a register and stores it between two
// __syncwarp.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    smem<<<blocks, call.block, 0, stream_of(call)>>>(data, partials, n);
  });
}

const Register rung("smem", in_passes({1}, run));

}  // namespace

}  // namespace gpureduce::ladder
