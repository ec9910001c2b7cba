// Exercise 15, no_constant. Chapter 3: seven steps in shared memory.
//
// kind      mend
// asks      right sums; shared bytes at most 2048
// task      This kernel is meant to take as much shared memory as its block needs. It is printed in this way in a
//           lesson, and it does not compile. Mend it. To pass, blocks of 512 threads may take at most 2048 bytes of
//           shared memory. The check's launch gives one float per thread.
// hint      The size of an `extern __shared__` array is not in the kernel: it is the third number in <<<...>>>.

__global__ void no_constant(const float* in, float* out, int n) {
  __shared__ float sdata[blockDim.x];
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
