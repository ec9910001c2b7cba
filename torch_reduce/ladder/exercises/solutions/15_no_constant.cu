// Solution 15, no_constant. Chapter 3: seven steps in shared memory.
//
// why       A compiler lays out shared memory before the kernel runs, so the size in `__shared__ float sdata[...]`
//           must be a constant. blockDim.x is known at launch. `extern __shared__ float sdata[];` says that the
//           launch decides: <<<blocks, threads, threads * sizeof(float)>>>. Blocks of 512 then take 512 * 4 = 2048
//           bytes. `float sdata[1024]` would be right, too, but take 4096 bytes in every block.

__global__ void no_constant(const float* in, float* out, int n) {
  extern __shared__ float sdata[];
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
