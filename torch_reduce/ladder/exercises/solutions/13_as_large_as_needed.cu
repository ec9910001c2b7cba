// Solution 13, as_large_as_needed. Chapter 2: shared memory.
//
// why       extern __shared__ leaves the size to the launch: 512 * 4 = 2048 bytes for a block of 512, where
//           smem[1024] takes 4096. Thread t adds elements t, t + blockDim.x, t + 2 * blockDim.x and t + 3 *
//           blockDim.x of the block, each if it is there. The tree does not change: it adds one sum per thread.

__global__ void as_large_as_needed(const float* in, float* out, int n) {
  extern __shared__ float smem[];
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x * 4;
  float sum = 0;
  for (int k = 0; k < 4; ++k) {
    const int i = first + k * blockDim.x + tid;
    if (i < n) sum += in[i];
  }
  smem[tid] = sum;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) smem[tid] += smem[tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = smem[0];
}
