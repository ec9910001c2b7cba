// Exact sums on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/plan/exact.h"

namespace gpureduce::cuda {

// The workspace need not be initialised.
GPUREDUCE_API cudaError_t run_exact(const ExactSum& sum, const ExactPlan& plan, void* workspace, const Device& device,
                                    cudaStream_t stream);

GPUREDUCE_API cudaError_t round_exact(const ExactRounding& rounding, cudaStream_t stream);

}  // namespace gpureduce::cuda
