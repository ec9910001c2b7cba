// Solution 20, out_of_step. Chapter 4: the modern steps.
//
// why       Without braces only the first line belongs to the `if`, and all warps take the other five: each adds
//           words that the next one is changing, and the last one reads up to 16 words behind the block. No such sum
//           reaches thread 0, but they are races, and 7.94 loads from shared memory per warp instead of 2.56. With
//           braces, and with `volatile`, the lesson's lines were right as long as the 32 threads of a warp ran in
//           step. Since Volta they need not, and thread 0 may read a word before thread 16 has written it.
//           __syncwarp() puts the accesses in order, and it costs no barrier of the block. Blocks of 512 wait at 4
//           barriers: one after the copy and one after each of the strides 256, 128 and 64. The loop with a barrier
//           per step would take 10.

__global__ void out_of_step(const float* in, float* out, int n) {
  __shared__ float sdata[1024];
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 32; s /= 2) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid < 32) {
    for (unsigned s = 32; s > 0; s /= 2) {
      const float sum = sdata[tid] + sdata[tid + s];
      __syncwarp();
      sdata[tid] = sum;
      __syncwarp();
    }
  }
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
