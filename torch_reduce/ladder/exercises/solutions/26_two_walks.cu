// Solution 26, two_walks. Chapter 5: divergence itself.
//
// why       `tid % 2 == 0` is true for 16 threads of each warp and false for 16. So each warp diverges, and walks
//           both loops with half of its threads asleep: 8 loads per warp for 4 elements per thread. One branch of 17
//           diverges: 94.1%. `tid < half` is true for whole warps: of 512 threads, warps 0 to 7 walk up, warps 8 to
//           15 walk down, none diverges, and each warp makes 4 loads. The walks need a number from 0 to half - 1,
//           which is tid in one half and tid - half in the other. The elements are the same.

__global__ void two_walks(const float* in, float* out, int n) {
  __shared__ float sums[1024];
  const int tid = threadIdx.x, threads = blockDim.x, half = threads / 2;
  const int begin = blockIdx.x * threads * 4;  // this block's tile: 4 elements per thread
  float sum = 0;
  if (tid < half) {  // half of the threads walk up through the first half of the tile
    for (int i = begin + tid; i < begin + 2 * threads && i < n; i += half) sum += in[i];
  } else {  // the others walk down through the second half
    for (int i = begin + 4 * threads - 1 - (tid - half); i >= begin + 2 * threads; i -= half) {
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
