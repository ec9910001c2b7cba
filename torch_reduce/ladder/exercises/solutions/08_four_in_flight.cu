// Solution 8, four_in_flight. Chapter 1: in place, in global memory.
//
// why       Each thread loads elements t, t + blockDim.x, t + 2 * blockDim.x and t + 3 * blockDim.x of the
//           block's 4 tiles, and keeps their sum in a register: four loads in flight instead of one. The tree
//           with its 9 steps now serves 2048 elements of a block of 512. The barrier before the tree is needed:
//           the first step reads what other threads stored.

__global__ void four_in_flight(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x * 4;  // this block's first element
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int i = first + k * blockDim.x + tid;
    if (i < n) sum += in[i];
  }
  if (first + tid < n) in[first + tid] = sum;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride && first + tid + stride < n) in[first + tid] += in[first + tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = in[first];
}
