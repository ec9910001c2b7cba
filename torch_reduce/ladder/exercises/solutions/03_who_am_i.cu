// Solution 3, who_am_i. Chapter 0: before the first kernel.
//
// why       threadIdx.x begins at 0 in every block, so all blocks add the first 64 pairs. The index in the grid
//           is blockIdx.x * blockDim.x + threadIdx.x. 500 / 64 is 7 in integers: 448 threads. Rounded up, (500 +
//           63) / 64, it is 8 blocks of 512 threads, and the last 12 must not add: `if (i < pairs)`.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void add_pairs(const float* in, float* out, int pairs) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < pairs) out[i] = in[2 * i] + in[2 * i + 1];
}

int main() {
  const int n = 1000, pairs = n / 2, block = 64, blocks = (pairs + block - 1) / block;
  std::vector<float> numbers(n), sums(pairs);
  for (int i = 0; i < n; ++i) numbers[i] = i % 10;

  float *in, *out;
  cudaMalloc(&in, n * sizeof(float));
  cudaMalloc(&out, pairs * sizeof(float));
  cudaMemcpy(in, numbers.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  add_pairs<<<blocks, block>>>(in, out, pairs);
  cudaMemcpy(sums.data(), out, pairs * sizeof(float), cudaMemcpyDeviceToHost);
  cudaFree(in);
  cudaFree(out);

  double total = 0;
  for (float sum : sums) total += sum;
  std::printf("the sum is %.0f: %s\n", total, total == 4500 ? "right" : "wrong");
}
