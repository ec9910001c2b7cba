// Exercise 17, fewer_barriers. Chapter 3: seven steps in shared memory.
//
// kind      mend
// asks      right sums; barriers at most 5; bank conflicts at most 0
// task      This kernel adds right, and a block of 512 comes to 10 barriers. From stride 32 on only the first
//           warp adds, and the 15 others come to the barriers for nothing. Write these six steps for the first
//           warp alone. They need no barrier of the block, but an order within the warp. A warp may come to at
//           most 5 barriers.
// hint      Let the loop end before stride 32. In the first warp, all 32 threads can add in every step: read both
//           words, __syncwarp(), store the sum, __syncwarp().

__global__ void fewer_barriers(const float* in, float* out, int n) {
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
