// Exercise 12, leave_the_input. Chapter 2: shared memory.
//
// kind      write
// asks      right sums; stores at most 0.1
// task      The tree of this kernel works in global memory and destroys its input. Let it work in shared memory:
//           copy the block's elements there first, one per thread, and zero where there is none. The input is
//           const, so only the block's sum may be stored in global memory: that is one store per block, and at
//           most 0.1 per warp of a block of 512.
// hint      Declare 1024 floats with __shared__. What has to stand between the copy and the tree?

__global__ void leave_the_input(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x;  // this block's first element
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride && first + tid + stride < n) in[first + tid] += in[first + tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = in[first];
}
