// Solution 9, one_float. Chapter 2: shared memory.
//
// why       `__shared__ float sdata;` is one float, and sdata[tid] asks for many. Each thread stores one element, so
//           a block of 1024 threads needs 1024 floats, 4096 bytes of the 48 KiB that a block may have. `__shared__
//           float sdata[1024];` serves smaller blocks, too: they leave the rest unused.

__global__ void one_float(const float* in, float* out, int n) {
  __shared__ float sdata[1024];
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
