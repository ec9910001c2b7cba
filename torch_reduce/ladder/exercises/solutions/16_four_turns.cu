// Solution 16, four_turns. Chapter 3: seven steps in shared memory.
//
// why       With s = 2 thread t touches word 4 * t: words 0, 32, 64 and 96 all lie in bank 0, and a request takes 4
//           turns instead of one. Blocks of 512 count 14.06 conflicts per warp. With the largest stride first, thread
//           t touches words t and t + s: a warp touches 32 words side by side, one per bank. So there are 0
//           conflicts, with the same 9 steps and 10 barriers.

__global__ void four_turns(const float* in, float* out, int n) {
  __shared__ float sdata[1024];
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
