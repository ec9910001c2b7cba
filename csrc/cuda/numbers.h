// Numbers of the host that go to a GPU as parameters of kernels. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace gpureduce::cuda {

// Writes `count` numbers to the device. They have been read when this returns; nothing waits, and a CUDA graph keeps them.
cudaError_t write_numbers(const int64_t* numbers, int64_t count, int64_t* to, cudaStream_t stream);

}  // namespace gpureduce::cuda
