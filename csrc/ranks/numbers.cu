// Numbers as kernel parameters: a copy from pageable memory would make the host wait, and a CUDA graph cannot capture it.
#include <algorithm>

#include "numbers.h"

namespace gpureduce::cuda {

namespace {

constexpr int kMostNumbers = 500;  // per launch: parameters have 4 KiB on every GPU

struct Numbers { int64_t at[kMostNumbers]; };

__global__ void write(const __grid_constant__ Numbers numbers, int count, int64_t* to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) to[i] = numbers.at[i];
}

}  // namespace

cudaError_t write_numbers(const int64_t* numbers, int64_t count, int64_t* to, cudaStream_t stream) {
  for (int64_t first = 0; first < count; first += kMostNumbers) {
    const int part_count = static_cast<int>(std::min<int64_t>(kMostNumbers, count - first));
    Numbers part;
    std::copy_n(numbers + first, part_count, part.at);
    write<<<1, (part_count + 31) / 32 * 32, 0, stream>>>(part, part_count, to + first);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gpureduce::cuda
