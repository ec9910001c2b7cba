// Solution 30, who_comes_first. Chapter 6: where it leads.
//
// why       out[blockIdx.x] = the block's sum. Each block writes to its own place, so no block waits for another,
//           and whoever adds these partial sums does it in an order that he chooses. The two results of atomics
//           become 1. This is the difference between multi_element and multi_element_partials.

__global__ void who_comes_first(const float* in, float* out, int n) {
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
