// Solution 17, fewer_barriers. Chapter 3: seven steps in shared memory.
//
// why       The loop takes strides 256, 128 and 64 with a barrier each, and one barrier follows the copy: 4. The
//           first warp takes strides 32 to 1 with __syncwarp(), which is cheap and makes no other warp wait. All
//           32 threads add in each of these steps. Few of their sums are needed, and none is wrong: a thread
//           reads both words before any thread stores.

__global__ void fewer_barriers(const float* in, float* out, int n) {
  __shared__ float sdata[1024];
  const unsigned tid = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + tid;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride > 32; stride /= 2) {
    if (tid < stride) sdata[tid] += sdata[tid + stride];
    __syncthreads();
  }
  if (tid < 32) {
    for (unsigned stride = 32; stride > 0; stride /= 2) {
      const float sum = sdata[tid] + sdata[tid + stride];
      __syncwarp();
      sdata[tid] = sum;
      __syncwarp();
    }
  }
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
