// The sum of a million floats on a GPU: a whole program, from main() to the last cudaFree.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

// Each thread adds the elements first, first + threads, first + 2 * threads, ..., and writes its sum.
__global__ void add_every(const float* in, float* sums, int n) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x;  // this thread's number in the grid
  const int threads = gridDim.x * blockDim.x;               // how many threads the grid has
  float sum = 0;
  for (int i = first; i < n; i += threads) sum += in[i];
  sums[first] = sum;
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("error: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

int main() {
  const int n = 1000000, blocks = 16, block = 256, threads = blocks * block;
  std::vector<float> numbers(n), found(threads);
  for (int i = 0; i < n; ++i) numbers[i] = i % 10;  // 0 + 1 + ... + 9 = 45, a hundred thousand times

  float *in, *sums;  // 1. memory on the GPU
  check(cudaMalloc(&in, n * sizeof(float)));
  check(cudaMalloc(&sums, threads * sizeof(float)));

  check(cudaMemcpy(in, numbers.data(), n * sizeof(float), cudaMemcpyHostToDevice));  // 2. the elements go there

  add_every<<<blocks, block>>>(in, sums, n);  // 3. the kernel starts
  check(cudaGetLastError());                  //    did it start?
  check(cudaDeviceSynchronize());             //    the host waits until it has ended

  check(cudaMemcpy(found.data(), sums, threads * sizeof(float), cudaMemcpyDeviceToHost));  // 4. the sums come back

  check(cudaFree(in));  // 5. the memory is given back
  check(cudaFree(sums));

  double total = 0;  // the threads' sums are added here, on the CPU; the next chapters do that on the GPU
  for (float sum : found) total += sum;
  const bool right = total == 4500000;
  std::printf("the sum is %.0f: %s\n", total, right ? "right" : "wrong");
  return right ? 0 : 1;
}
