// Solution 11, the_lost_half. Chapter 2: shared memory.
//
// why       A block of 128 threads has to add elements 64 to 127 to elements 0 to 63. The test `blockDim.x > 128` is
//           false for 128, so that this step is left out and elements 64 to 127 are lost: half of the sum. Blocks of
//           64 have no such step, and blocks of 256 and more pass the test. `blockDim.x >= 128` takes the step.

__global__ void the_lost_half(const float* in, float* out, int n) {
  __shared__ float smem[1024];
  const unsigned tid = threadIdx.x;
  const int idx = blockIdx.x * blockDim.x + tid;
  smem[tid] = idx < n ? in[idx] : 0;
  __syncthreads();
  if (blockDim.x >= 1024 && tid < 512) smem[tid] += smem[tid + 512];
  __syncthreads();
  if (blockDim.x >= 512 && tid < 256) smem[tid] += smem[tid + 256];
  __syncthreads();
  if (blockDim.x >= 256 && tid < 128) smem[tid] += smem[tid + 128];
  __syncthreads();
  if (blockDim.x >= 128 && tid < 64) smem[tid] += smem[tid + 64];
  __syncthreads();
  if (tid < 32) {
    for (unsigned s = 32; s > 0; s /= 2) {
      const float sum = smem[tid] + smem[tid + s];
      __syncwarp();
      smem[tid] = sum;
      __syncwarp();
    }
  }
  if (tid == 0) out[blockIdx.x] = smem[0];
}
