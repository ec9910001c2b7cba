// Solution 21, two_rounds. Chapter 4: the modern steps.
//
// why       Warps 0 to 7 write sums[0] to sums[7], and the first 8 threads of warp 0 read them. Nothing makes warp 0
//           wait for the 7 other warps: if it is first, it adds words that nobody has written. A __syncthreads()
//           between the two lines puts them in order. It is the only barrier that the kernel needs. A __syncwarp()
//           would not do, since it orders the threads of one warp.
// mistake   `atomicAdd(out, value)`: atomics of different blocks go to the same word, but the memory takes them one
//           by one.
// mistake   `value = in[i]`: each thread reads an element of its own, and nobody writes to the input.

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
  __syncthreads();
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
