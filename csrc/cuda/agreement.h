// Whether all ranks are about to do the same, found out without the host. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace gpureduce::cuda {

// Ends all work on the device, as a failed device-side assertion, unless `ranks` notices agree with `mine`. The notices
// are then in `report`, memory of the host that the device can write: 1, and after it all of them.
cudaError_t expect_agreement(const int64_t* notices, int64_t ranks, const int64_t* mine, int64_t* report, cudaStream_t stream);

}  // namespace gpureduce::cuda
