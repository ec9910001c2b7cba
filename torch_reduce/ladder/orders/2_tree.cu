// Chapter 7, step 2: nearest neighbours first, in a warp and then among the warps. The blocks still join as they arrive.
constexpr int kElements = 8;

// Lane 0 gets the sum of its warp: 0+1, 2+3, ... then (0+1)+(2+3), ...
__device__ float add_warp(float sum) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_down_sync(0xffffffff, sum, distance);
  return sum;
}

__global__ void __launch_bounds__(512) tree(const float* x, float* out, int n) {
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
  sum = add_warp(sum);
  if (thread % 32 == 0) warps[thread / 32] = sum;
  __syncthreads();
  if (thread >= 32) return;
  sum = add_warp(thread < 16 ? warps[thread] : 0);
  if (thread == 0) atomicAdd(out, sum);
}
