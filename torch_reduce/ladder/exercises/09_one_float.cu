// Exercise 9, one_float. Chapter 2: shared memory.
//
// kind      mend
// asks      right sums
// task      The tree of this kernel works in shared memory. It is printed in this way in a lesson, and it does not
//           compile. Check the file as it is, to see the compiler's message. Then mend it. Blocks may have up to 1024
//           threads.
// hint      How many floats does the kernel need per block, and how many does the declaration make?

__global__ void one_float(const float* in, float* out, int n) {
  __shared__ float sdata;
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
