// Copies host numbers to a GPU as parameters of kernels. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../core/api.h"

namespace gpureduce::cuda {

// Writes `count` numbers to the device. They are read before this returns. The host does not wait, and a CUDA graph keeps the
// numbers.
GPUREDUCE_API cudaError_t write_numbers(const int64_t* numbers, int64_t count, int64_t* to, cudaStream_t stream);

}  // namespace gpureduce::cuda
