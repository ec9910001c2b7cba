// Chapter 7, step 1: multi_element with 8 elements per thread, in blocks of 512. A thread is a lane already; the tree is not
// the contract's.
constexpr int kElements = 8;

__global__ void __launch_bounds__(512) lanes(const float* x, float* out, int n) {
  __shared__ float warps[16];
  const int thread = threadIdx.x, tile = blockIdx.x * 512 * kElements;
  float values[kElements];
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int i = tile + k * 512 + thread;
    values[k] = i < n ? x[i] : 0;
  }
  float sum = values[0];
#pragma unroll
  for (int k = 1; k < kElements; ++k) sum += values[k];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffff, sum, distance);
  if (thread % 32 == 0) warps[thread / 32] = sum;
  __syncthreads();
  if (thread >= 32) return;
  sum = thread < 16 ? warps[thread] : 0;
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffff, sum, distance);
  if (thread == 0) atomicAdd(out, sum);
}
