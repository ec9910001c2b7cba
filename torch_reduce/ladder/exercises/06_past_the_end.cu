// Exercise 6, past_the_end. Chapter 1: in place, in global memory.
//
// kind      find
// asks      wrong accesses, 1000 elements, blocks of 128, 2 elements per thread
// task      Each block of this kernel adds two tiles of 128 elements, as in unrolling2. With 1024 elements it is
//           right. With 1000 elements one line reads memory behind the array. Which line is it? Answer with its
//           number.
// hint      The last block has the elements 768 to 999. Write down idx and idx + blockDim.x for its threads 0, 103,
//           104 and 127.

__global__ void past_the_end(float* in, float* out, int n) {
  const unsigned tid = threadIdx.x;
  float* idata = in + blockIdx.x * blockDim.x * 2;
  const int idx = blockIdx.x * blockDim.x * 2 + tid;
  if (idx < n) {
    in[idx] += in[idx + blockDim.x];
  }
  __syncthreads();
  for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (tid < stride) {
      idata[tid] += idata[tid + stride];
    }
    __syncthreads();
  }
  if (tid == 0) {
    out[blockIdx.x] = idata[0];
  }
}
