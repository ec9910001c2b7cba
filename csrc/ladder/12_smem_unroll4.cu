// Rung 12, smem_unroll4. Chapter 2: shared memory.
//
// threads   Four elements a thread, a block apart.
// idea      Four blocks of data are added in registers before shared memory is touched.
// removes   Three quarters of the blocks, and of their barriers; four loads are in flight a thread.
// wrong     The tests of the four indices; the size of the array is fixed when the kernel is compiled.
// requires  As smem.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 5, reduceSmemUnroll
// moves     DRAM read throughput up
// faster    than smem
// command   python -m torch_reduce.ladder run --rungs smem,smem_unroll4 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void smem_unroll4(const T* g_idata, T* g_odata, int64_t n) {
  __shared__ T smem[1024];
  const unsigned tid = threadIdx.x;
  const int64_t idx = int64_t{blockIdx.x} * blockDim.x * 4 + tid;
  T sum = T(0);
  if (idx < n) {
    T a1 = g_idata[idx], a2 = T(0), a3 = T(0), a4 = T(0);
    if (idx + blockDim.x < n) a2 = g_idata[idx + blockDim.x];
    if (idx + 2 * blockDim.x < n) a3 = g_idata[idx + 2 * blockDim.x];
    if (idx + 3 * blockDim.x < n) a4 = g_idata[idx + 3 * blockDim.x];
    sum = a1 + a2 + a3 + a4;
  }
  smem[tid] = sum;
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

// Differs from the lesson: some printings test `idx + 3 * blockDim.x <= n` (one too far) and drop whatever is not complete:
// here each element is tested by itself; the array has room for the largest block, not for the lesson's 128; indices have 64
// bits; the kernel runs again on the blocks' sums, which the lesson adds on the host. The lesson's last warp keeps every sum
// in shared memory, behind a `volatile` pointer, which is not safe since Volta, where the threads of a warp need not run in
// step: add_last_warp in rung.cuh makes each sum in a register and stores it between two __syncwarp.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    smem_unroll4<<<blocks, call.block, 0, stream_of(call)>>>(data, partials, n);
  });
}

const Register rung("smem_unroll4", in_passes({4}, run));

}  // namespace

}  // namespace gpureduce::ladder
