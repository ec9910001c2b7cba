// Exercise 16, four_turns. Chapter 3: seven steps in shared memory.
//
// kind      mend
// asks      right sums; bank conflicts at most 0; barriers at most 10
// task      This kernel is right, but slow: the words of its tree lie far apart, and in shared memory they share
//           banks. Change who adds what, so that no request has a bank conflict. To pass, a block of 512 threads may
//           wait at no more than 10 barriers, as now.
// hint      Threads 0 to 31 of a warp should touch 32 words side by side. Begin with the largest stride.

__global__ void four_turns(const float* in, float* out, int n) {
  __shared__ float sdata[1024];
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned s = 1; s < blockDim.x; s *= 2) {
    const unsigned index = 2 * s * tid;
    if (index < blockDim.x) sdata[index] += sdata[index + s];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
