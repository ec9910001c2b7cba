// Exercise 11, the_lost_half. Chapter 2: shared memory.
//
// kind      mend
// asks      right sums
// task      This kernel takes the first steps of its tree without a loop, as smem does. It is printed in this way in
//           a lesson. The lesson's blocks have 512 threads, and for these it is right. Check the file as it is, to
//           see which blocks it is wrong for. Then mend it.
// hint      The wrong blocks lose about half of their sum. Which step adds the second half of such a block to the
//           first?

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
  if (blockDim.x > 128 && tid < 64) smem[tid] += smem[tid + 64];
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
