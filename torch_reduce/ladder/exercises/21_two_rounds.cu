// Exercise 21, two_rounds. Chapter 4: the modern steps.
//
// kind      find
// asks      races, 4096 elements, blocks of 256
// task      Each warp of this kernel adds 32 values by shuffles, and the first warp adds the warps' sums. It is
//           warp_shuffle with one line left out. Two accesses to memory are in no order: which ones? Answer with the
//           numbers of their two lines, such as 12,15.
// hint      Threads of different warps meet in one array only. Shuffles put the threads of one warp in order, and
//           atomics never race with each other.

__global__ void two_rounds(const float* in, float* out, int n) {
  __shared__ float sums[32];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float value = 0;
  if (i < n) {
    value = in[i];
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffff, value, offset);
  }
  if (lane == 0) {
    sums[warp] = value;
  }
  if (warp == 0) {
    value = 0;
    if (lane < blockDim.x / 32) {
      value = sums[lane];
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      value += __shfl_down_sync(0xffffffff, value, offset);
    }
    if (lane == 0) {
      atomicAdd(out, value);
    }
  }
}
