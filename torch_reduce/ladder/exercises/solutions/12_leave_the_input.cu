// Solution 12, leave_the_input. Chapter 2: shared memory.
//
// why       A thread copies its element to smem[tid], or 0 behind the end, so that the tree needs no test of n.
//           The barrier after the copy is needed, since the first step reads what other threads copied. A block
//           of 512 has 16 warps and stores one sum: 1 / 16 = 0.0625 stores per warp instead of several per step.

__global__ void leave_the_input(const float* in, float* out, int n) {
  __shared__ float smem[1024];
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  smem[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) smem[tid] += smem[tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = smem[0];
}
