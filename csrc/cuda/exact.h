// Exact sums on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "../problem/exact.h"

namespace gpureduce {
struct Device;
}

namespace gpureduce::cuda {

int64_t exact_workspace(const ExactSum& sum, const Device& device);  // bytes, which need not be initialised
cudaError_t run_exact(const ExactSum& sum, void* workspace, const Device& device, cudaStream_t stream);
cudaError_t round_exact(const ExactRounding& rounding, cudaStream_t stream);

}  // namespace gpureduce::cuda
