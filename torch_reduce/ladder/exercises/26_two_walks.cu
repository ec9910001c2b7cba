// Exercise 26, two_walks. Chapter 5: divergence itself.
//
// kind      mend
// asks      right sums; branch efficiency at least 99.9
// task      This kernel is right, but in each warp the even threads walk one way and the odd threads another, so that
//           the warp walks both ways, one after the other. Give the two ways to different warps. To pass, the branch
//           efficiency must be 100%. The second half of the tile must be added, too.
// hint      Which threads form the first half of the warps? Both walks need a number from 0 to half - 1 per thread.

__global__ void two_walks(const float* in, float* out, int n) {
  __shared__ float sums[1024];
  const int tid = threadIdx.x, threads = blockDim.x, half = threads / 2;
  const int begin = blockIdx.x * threads * 4;  // this block's tile: 4 elements per thread
  float sum = 0;
  if (tid % 2 == 0) {  // half of the threads walk up through the first half of the tile
    for (int i = begin + tid / 2; i < begin + 2 * threads && i < n; i += half) sum += in[i];
  } else {  // the others walk down through the second half
    for (int i = begin + 4 * threads - 1 - tid / 2; i >= begin + 2 * threads; i -= half) {
      if (i < n) sum += in[i];
    }
  }
  sums[tid] = sum;
  __syncthreads();
  for (int s = half; s > 0; s /= 2) {
    if (tid < s) sums[tid] += sums[tid + s];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = sums[0];
}
