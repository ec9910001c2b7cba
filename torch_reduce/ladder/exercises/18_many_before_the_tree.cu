// Exercise 18, many_before_the_tree. Chapter 3: seven steps in shared memory.
//
// kind      write
// asks      right sums; elements per thread at least 8; global load efficiency at least 99
// task      Write the idea of grid_stride: a thread adds many elements before any tree. Here a block has a tile
//           of 8 * blockDim.x elements, and each thread adds 8 of them in a register. In each turn neighbouring
//           threads must load neighbouring elements: at least 99% of the moved bytes must be used. Below, each
//           thread takes one element.
// hint      Thread t takes elements t, t + blockDim.x, t + 2 * blockDim.x, ... of the tile. What is the
//           efficiency if it takes elements 8 * t to 8 * t + 7 instead?

__global__ void many_before_the_tree(const float* in, float* out, int n) {
  __shared__ float sdata[1024];
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) sdata[tid] += sdata[tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
