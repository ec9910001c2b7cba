// Exercise 30, who_comes_first. Chapter 6: where it leads.
//
// kind      mend
// asks      right sums; orders of blocks at most 1
// task      This kernel adds right, and its sums of integers are exact. But it adds the blocks' sums by atomics,
//           in the order in which the blocks arrive. The check runs it with floats whose sum is rounded, once
//           with the first block first and once with the last one first, and gets two results. Mend it so that no
//           order of arrival can change a bit.
// hint      An order that does not depend on who comes first: each block has a place of its own in out.

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
  if (tid == 0) atomicAdd(out, smem[0]);
}
