// Solution 7, neighbours_touch. Chapter 1: in place, in global memory.
//
// why       Largest stride first: in the first step of a block of 512 thread t adds element t + 256 to element t,
//           and neighbouring threads touch neighbouring words in every step. That is interleaved. The efficiency
//           rises from 25.0% to 96.1%; what is missing to 100% are the last steps, in which fewer than 8 threads
//           use a sector.

__global__ void neighbours_touch(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x;  // this block's first element
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride && first + tid + stride < n) in[first + tid] += in[first + tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = in[first];
}
