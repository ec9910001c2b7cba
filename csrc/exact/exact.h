// Exact sums on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/plan/gpu.h"
#include "../core/problem/exact.h"

namespace gpureduce::cuda {

// The bytes of workspace that a call needs. They need not be initialised.
GPUREDUCE_API int64_t exact_workspace(const ExactSum& sum, const Device& device);

GPUREDUCE_API cudaError_t run_exact(const ExactSum& sum, void* workspace, const Device& device, cudaStream_t stream);

GPUREDUCE_API cudaError_t round_exact(const ExactRounding& rounding, cudaStream_t stream);

}  // namespace gpureduce::cuda
