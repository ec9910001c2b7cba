// Exercise 5, never_ends. Chapter 1: in place, in global memory.
//
// kind      mend
// asks      right sums
// task      This kernel is meant to be interleaved: a tree in place, with half of the threads in each step. It is
//           printed in this way in a lesson, and it compiles. On a GPU it never comes back. Find out why, and mend
//           it. Every size and every block must come out right.
// hint      What does the third part of the loop's head do to stride?

__global__ void never_ends(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  for (int stride = blockDim.x / 2; stride > 0; stride >> 1) {
    if (tid < stride && i + stride < n) in[i] += in[i + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = in[i];
}
