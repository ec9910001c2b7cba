// Exercise 31, last_one_adds. Chapter 6: where it leads.
//
// kind      write
// asks      right sums; results at most 1; orders of blocks at most 1
// task      One launch, one result in out[0], and the same bits whatever block comes first: the third form of
//           chapter 4. Each block stores its sum in partials, then counts itself with atomicAdd on arrived, which
//           returns how many were there before. The block that comes last adds all partial sums, from the first
//           block's on, and stores the result. Then it sets arrived back to 0, for the next launch. Write the
//           missing lines.
// hint      __threadfence() between the store and the atomic: without it another block may see the count before
//           the sum. The last block finds gridDim.x - 1.

__device__ float partials[1024];  // one sum per block; no launch here has more blocks
__device__ unsigned arrived;      // how many blocks have stored theirs

__global__ void last_one_adds(const float* in, float* out, int n) {
  __shared__ float smem[1024];
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  smem[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) smem[tid] += smem[tid + stride];
    __syncthreads();
  }
  if (tid == 0) {
    partials[blockIdx.x] = smem[0];
    // Here: make the store visible, count this block, and add the partial sums if it is the last one.
  }
}
