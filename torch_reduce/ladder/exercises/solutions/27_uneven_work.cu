// Solution 27, uneven_work. Chapter 5: divergence itself.
//
// why       With `tid % 2` each warp needs both sides, so its branch diverges, and half of its threads sleep
//           through 8 loads. With 4 elements for each of the 32 threads a warp makes 4 loads with all threads, of
//           neighbouring words, and no branch is left that depends on the thread. The block's sum is made by
//           shuffles, without a branch within a warp.

__global__ void uneven_work(const float* in, float* out, int n) {
  __shared__ float sums[32];
  const int tid = threadIdx.x, threads = blockDim.x, begin = blockIdx.x * threads * 4;
  float sum = 0;
  for (int k = 0; k < 4; ++k) {
    const int i = begin + k * threads + tid;
    if (i < n) sum += in[i];
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (tid % 32 == 0) sums[tid / 32] = sum;
  __syncthreads();
  if (tid < 32) {
    sum = tid < threads / 32 ? sums[tid] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (tid == 0) out[blockIdx.x] = sum;
  }
}
