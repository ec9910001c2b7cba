// Solution 6, past_the_end. Chapter 1: in place, in global memory.
//
// why       The test asks whether element idx is there, and the line below it loads element idx + 128, too. Of the
//           last block, idx is 768 to 895, so that the test is true for all 128 threads. Threads 104 to 127 then load
//           elements 1000 to 1023: 24 loads behind an array of 1000 elements. The tree is safe with these sizes: it
//           touches elements 768 to 895. The mended kernel tests what it loads: idx + blockDim.x < n. Its tree tests,
//           too, since a last block of other sizes has fewer than 128 elements.
// mistake   `idata[tid + stride]`: the tree touches the first 128 elements of a tile only. The last block has 232
//           elements.
// mistake   `if (idx < n)`: this line compares two numbers and touches no memory. Its test is too weak, but the
//           access is below it.

__global__ void past_the_end(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  float* idata = in + blockIdx.x * blockDim.x * 2;
  const int idx = blockIdx.x * blockDim.x * 2 + tid;
  if (idx + blockDim.x < n) {
    in[idx] += in[idx + blockDim.x];
  }
  __syncthreads();
  for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride && idx + stride < n) {
      idata[tid] += idata[tid + stride];
    }
    __syncthreads();
  }
  if (tid == 0) {
    out[blockIdx.x] = idata[0];
  }
}
