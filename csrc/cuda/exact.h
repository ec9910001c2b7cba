// Exact sums on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "../plan/gpu.h"
#include "../problem/exact.h"

namespace gpureduce::cuda {

// The bytes of workspace that a call needs. They need not be initialised.
int64_t exact_workspace(const ExactSum& sum, const Device& device);

cudaError_t run_exact(const ExactSum& sum, void* workspace, const Device& device, cudaStream_t stream);

cudaError_t round_exact(const ExactRounding& rounding, cudaStream_t stream);

}  // namespace gpureduce::cuda
