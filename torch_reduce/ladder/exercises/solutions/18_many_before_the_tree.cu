// Solution 18, many_before_the_tree. Chapter 3: seven steps in shared memory.
//
// why       In turn k thread t loads element t + k * blockDim.x of its tile: 32 neighbouring words per warp, 4
//           full sectors, 100.0%. With elements 8 * t to 8 * t + 7 each thread would touch a sector of its own in
//           every turn: 12.5%. The tree with its 9 steps now serves 4096 elements of a block of 512 instead of
//           512.

__global__ void many_before_the_tree(const float* in, float* out, int n) {
  __shared__ float sdata[1024];
  const unsigned tid = threadIdx.x;
  const int first = blockIdx.x * blockDim.x * 8;
  float sum = 0;
  for (int k = 0; k < 8; ++k) {
    const int i = first + k * blockDim.x + tid;
    if (i < n) sum += in[i];
  }
  sdata[tid] = sum;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) sdata[tid] += sdata[tid + stride];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
