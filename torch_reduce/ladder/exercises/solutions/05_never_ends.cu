// Solution 5, never_ends. Chapter 1: in place, in global memory.
//
// why       `stride >> 1` computes half of stride and throws it away. `stride >>= 1` stores it. With blocks of 512
//           the loop then takes 9 turns, with strides 256, 128, ... 1, and ends at 0. The compiler says nothing by
//           default. With warnings on, g++ and nvcc say that the expression has no effect.

__global__ void never_ends(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
    if (tid < stride && i + stride < n) in[i] += in[i + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = in[i];
}
