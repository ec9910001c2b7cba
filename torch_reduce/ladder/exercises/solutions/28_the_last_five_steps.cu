// Solution 28, the_last_five_steps. Chapter 5: divergence itself.
//
// why       With strides 256, 128 and 64 whole warps add or do not: no branch diverges. Then the first warp has
//           64 elements left. Each of its threads adds two of them in a register, and 5 shuffles, which all 32
//           threads run, take the place of the 5 steps with strides 16 to 1. Only the block's last line asks for
//           thread 0, and the kernel ends there: no branch.

__global__ void the_last_five_steps(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x;  // this block's first element
  for (unsigned stride = blockDim.x / 2; stride > 32; stride /= 2) {
    if (tid < stride && first + tid + stride < n) in[first + tid] += in[first + tid + stride];
    __syncthreads();
  }
  if (tid < 32) {
    float sum = first + tid < n ? in[first + tid] : 0;
    if (first + tid + 32 < n) sum += in[first + tid + 32];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (tid == 0) out[blockIdx.x] = sum;
  }
}
