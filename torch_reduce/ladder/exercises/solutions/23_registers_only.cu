// Solution 23, registers_only. Chapter 4: the modern steps.
//
// why       Five shuffles with offsets 16, 8, 4, 2 and 1 add the 32 values of a warp, from register to register.
//           The warps' sums meet in shared memory, with 1 barrier between the stores and the loads. Of a block of
//           512, only the first of 16 warps loads: 1 / 16 = 0.0625 loads per warp, and the tree in shared memory
//           made several per step. That is warp_shuffle_partials.

__global__ void registers_only(const float* in, float* out, int n) {
  __shared__ float sums[32];
  const unsigned tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int i = blockIdx.x * blockDim.x + tid;
  float sum = i < n ? in[i] : 0;
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < blockDim.x / 32 ? sums[lane] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (lane == 0) out[blockIdx.x] = sum;
  }
}
