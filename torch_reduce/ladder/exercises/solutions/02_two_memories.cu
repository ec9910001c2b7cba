// Solution 2, two_memories. Chapter 0: before the first kernel.
//
// why       There are 4 faults. A kernel cannot reach numbers.data(), which is the host's memory: it gets `in`.
//           So the numbers must be copied to `in` first. The squares go from the device to the host:
//           cudaMemcpyDeviceToHost. And each of the 2 arrays is freed.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void square(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] * in[i];
}

int main() {
  const int n = 1000, block = 128, blocks = (n + block - 1) / block;
  std::vector<float> numbers(n), squares(n);
  for (int i = 0; i < n; ++i) numbers[i] = i % 10;

  float *in, *out;
  cudaMalloc(&in, n * sizeof(float));
  cudaMalloc(&out, n * sizeof(float));
  cudaMemcpy(in, numbers.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  square<<<blocks, block>>>(in, out, n);
  cudaMemcpy(squares.data(), out, n * sizeof(float), cudaMemcpyDeviceToHost);
  cudaFree(in);
  cudaFree(out);

  double total = 0;
  for (float each : squares) total += each;
  std::printf("the sum of the squares is %.0f: %s\n", total, total == 28500 ? "right" : "wrong");
}
