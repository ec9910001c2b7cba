// Exercise 28, the_last_five_steps. Chapter 5: divergence itself.
//
// kind      write
// asks      right sums; branch efficiency at least 99.9
// task      This tree in global memory is interleaved. In its last five steps fewer than 32 threads add, and the
//           first warp diverges. Write the last steps so that no branch diverges: from stride 32 on, let all 32
//           threads of the first warp take part in every step. Every size must be right, so the warp adds in
//           registers what it read from the block's first 64 elements.
// hint      Up to stride 64 leave the loop. Then each thread of the first warp reads elements tid and tid + 32,
//           those that are there, and five shuffles add the 32 sums.

__global__ void the_last_five_steps(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x;  // this block's first element
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride && first + tid + stride < n) in[first + tid] += in[first + tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = in[first];
}
