// Exercise 10, sum_into_nothing. Chapter 2: shared memory.
//
// kind      mend
// asks      right sums; shared loads at most 3
// task      Each thread of this kernel adds four elements, then the block adds its threads' sums in shared memory.
//           Lessons print it in this way. It may even work on a GPU, on the first day. Mend it. To pass, a warp may
//           make at most 3 loads from shared memory, on average: add the four elements in a register.
// hint      What is in smem before the first `+=`?

__global__ void sum_into_nothing(const float* in, float* out, int n) {
  __shared__ float smem[1024];
  const unsigned tid = threadIdx.x;
  const int idx = blockIdx.x * blockDim.x * 4 + tid;
  for (int k = 0; k < 4; ++k) {
    const int i = idx + k * blockDim.x;
    if (i < n) smem[tid] += in[i];
  }
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) smem[tid] += smem[tid + s];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = smem[0];
}
