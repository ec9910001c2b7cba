// Exercise 8, four_in_flight. Chapter 1: in place, in global memory.
//
// kind      write
// asks      right sums; elements per thread at least 4; global load efficiency at least 95
// task      Below is interleaved, one element per thread. Write unrolling4: a block adds four tiles of blockDim.x
//           elements. Thread t first adds the elements t of its four tiles, with four loads that do not wait for
//           each other. Then the tree adds the block's first tile, as before. Every size must be right, so each
//           of the four loads needs its own test.
// hint      The block's first element is blockIdx.x * blockDim.x * 4. The tree works on the first tile alone, so
//           its test is the one that is there.

__global__ void four_in_flight(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x;  // this block's first element
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride && first + tid + stride < n) in[first + tid] += in[first + tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = in[first];
}
