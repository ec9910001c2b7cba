// Exercise 7, neighbours_touch. Chapter 1: in place, in global memory.
//
// kind      mend
// asks      right sums; global load efficiency at least 90
// task      This kernel adds right: it is neighbored_less. But with large strides the threads of a warp load
//           words that are far apart, and most bytes of a sector move for nothing. Let neighbouring threads load
//           neighbouring words in every step. At least 90% of the moved bytes must be used.
// hint      In which order do the strides have to come, so that thread t can add element t + stride to element t?

__global__ void neighbours_touch(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x;  // this block's first element
  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {
    const unsigned mine = 2 * stride * tid;
    if (mine < blockDim.x && first + mine + stride < n) in[first + mine] += in[first + mine + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = in[first];
}
