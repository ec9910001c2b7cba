// Exercise 3, who_am_i. Chapter 0: before the first kernel.
//
// kind      program
// asks      a right program
// task      Each thread of this program adds a pair of elements: thread i adds elements 2 * i and 2 * i + 1.
//           There are 500 pairs and blocks of 64 threads. The copies are right. But the threads do not know who
//           they are, and there are too few of them. Mend the index, the number of blocks, and what then goes
//           wrong at the end.
// hint      Write down which pairs blocks 0 and 1 add. Then: how many blocks of 64 does it take for 500 threads,
//           and what do the threads do that are left over?

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void add_pairs(const float* in, float* out, int pairs) {
  const int i = threadIdx.x;
  out[i] = in[2 * i] + in[2 * i + 1];
}

int main() {
  const int n = 1000, pairs = n / 2, block = 64, blocks = pairs / block;
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
