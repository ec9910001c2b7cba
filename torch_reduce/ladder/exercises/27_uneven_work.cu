// Exercise 27, uneven_work. Chapter 5: divergence itself.
//
// kind      mend
// asks      right sums; branch efficiency at least 99.9; loads at most 4.1
// task      A block has a tile of 4 * blockDim.x elements. Its threads with an odd number add 8 of them each, the
//           others none. So each warp makes 8 loads with half of its threads asleep. Give each thread 4 elements.
//           No branch may diverge in whole blocks, and a warp may make at most 4 loads from global memory, on
//           average. The tree at the end has no branch that diverges; leave it.
// hint      Each turn should load blockDim.x neighbouring elements. How many turns are that for 4 * blockDim.x
//           elements?

__global__ void uneven_work(const float* in, float* out, int n) {
  __shared__ float sums[32];
  const int tid = threadIdx.x, threads = blockDim.x, begin = blockIdx.x * threads * 4;
  float sum = 0;
  if (tid % 2 == 1) {
    for (int k = 0; k < 8; ++k) {
      const int i = begin + k * (threads / 2) + tid / 2;
      if (i < n) sum += in[i];
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (tid % 32 == 0) sums[tid / 32] = sum;
  __syncthreads();
  if (tid < 32) {
    sum = tid < threads / 32 ? sums[tid] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (tid == 0) out[blockIdx.x] = sum;
  }
}
