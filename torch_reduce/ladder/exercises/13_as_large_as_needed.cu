// Exercise 13, as_large_as_needed. Chapter 2: shared memory.
//
// kind      write
// asks      right sums; elements per thread at least 4; shared bytes at most 2048
// task      Write smem_unroll_dynamic: each thread adds four elements in a register and stores its sum in shared
//           memory, then the block's tree adds these sums. The array has one float per thread, and each launch
//           says how large it is: blocks of 512 may take 2048 bytes. Below is the kernel with one element per
//           thread and with an array for the largest block.
// hint      Chapter 2 shows both ways to declare an array in shared memory. The block's first element is blockIdx.x *
//           blockDim.x * 4.

__global__ void as_large_as_needed(const float* in, float* out, int n) {
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
