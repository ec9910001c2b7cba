// Solution 10, sum_into_nothing. Chapter 2: shared memory.
//
// why       Shared memory is not set to zero. It holds what an earlier block left there, and `+=` adds to it. The
//           emulator fills it with a pattern and reports the first read where nothing has been written. `smem[tid] =
//           0;` before the loop would be right and cost 6.56 loads per warp: four of them load a number that the
//           thread has just stored. With the sum in a register it takes 2.56 loads per warp: only the tree's.

__global__ void sum_into_nothing(const float* in, float* out, int n) {
  __shared__ float smem[1024];
  const unsigned tid = threadIdx.x;
  const int idx = blockIdx.x * blockDim.x * 4 + tid;
  float sum = 0;
  for (int k = 0; k < 4; ++k) {
    const int i = idx + k * blockDim.x;
    if (i < n) sum += in[i];
  }
  smem[tid] = sum;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) smem[tid] += smem[tid + s];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = smem[0];
}
