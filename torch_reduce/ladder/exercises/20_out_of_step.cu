// Exercise 20, out_of_step. Chapter 4: the modern steps.
//
// kind      mend
// asks      right sums; barriers at most 4
// task      The last six steps of this kernel belong to one warp. Lessons print them in this way: without braces, and
//           without `volatile`. Mend it, so that only the first warp takes the steps and no two accesses race. To
//           pass, a block of 512 threads may wait at no more than 4 barriers, so __syncthreads() between the last
//           steps is too much.
// hint      Which lines belong to the `if`? Then: __syncwarp() between a load and a store, or shuffles. `volatile`
//           alone is not enough since Volta.

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
  if (tid < 32)
    sdata[tid] += sdata[tid + 32];
    sdata[tid] += sdata[tid + 16];
    sdata[tid] += sdata[tid + 8];
    sdata[tid] += sdata[tid + 4];
    sdata[tid] += sdata[tid + 2];
    sdata[tid] += sdata[tid + 1];
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
