// Exercise 2, two_memories. Chapter 0: before the first kernel.
//
// kind      program
// asks      a right program
// task      This whole program squares 1000 numbers on the GPU and adds the squares on the host. The kernel is
//           right. But the lines between cudaMalloc and cudaFree mix up the host's memory and the GPU's, and
//           something is forgotten. Check it as it is, read what is said, and mend one fault after the other.
// hint      Which memory does numbers.data() lie in? What fills `in`? Which way do the squares go? What is freed?

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
  square<<<blocks, block>>>(numbers.data(), out, n);
  cudaMemcpy(squares.data(), out, n * sizeof(float), cudaMemcpyHostToDevice);
  cudaFree(in);

  double total = 0;
  for (float each : squares) total += each;
  std::printf("the sum of the squares is %.0f: %s\n", total, total == 28500 ? "right" : "wrong");
}
