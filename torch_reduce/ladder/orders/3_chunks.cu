// Chapter 7, step 3: each block leaves the sum of its chunk, and the last block to arrive joins these by nearest neighbours.
// One thing is left: what stands for elements that are not there.
constexpr int kElements = 8;

__device__ float partial[32768];  // a sum for each block
__device__ unsigned arrived;      // how many blocks have left one

// Lane 0 gets the sum of its warp: 0+1, 2+3, ... then (0+1)+(2+3), ...
__device__ float add_warp(float sum) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_down_sync(0xffffffff, sum, distance);
  return sum;
}

// A level of the tree over whole warps: to[0] is the sum of from[0] to from[31], and so on.
__device__ void add_level(const float* from, int count, float* to) {
#pragma unroll 4
  for (int i = threadIdx.x; i / 32 * 32 < count; i += 512) {
    const float sum = add_warp(i < count ? from[i] : 0);
    if (i % 32 == 0) to[i / 32] = sum;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(512) chunks(const float* x, float* out, int n) {
  __shared__ float warps[32], row[1024];
  __shared__ bool last;
  const int thread = threadIdx.x, tile = blockIdx.x * 512 * kElements, blocks = gridDim.x;
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
  if (thread < 32) sum = add_warp(thread < 16 ? warps[thread] : 0);
  if (thread == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();  // the sum is there for all before the block is counted
    last = atomicAdd(&arrived, 1u) == blocks - 1;
  }
  __syncthreads();
  if (!last) return;
  add_level(partial, blocks, row);
  add_level(row, (blocks + 31) / 32, warps);
  add_level(warps, (blocks + 1023) / 1024, out);
  if (thread == 0) arrived = 0;  // for the next launch
}
