// Checks without the host that all ranks are about to do the same. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../core/api.h"

namespace gpureduce::cuda {

// Fails a device-side assertion, which ends all work on the device, unless `ranks` notices agree with `mine`. Then `report`,
// host memory that the device can write, has a 1 and after it all notices.
GPUREDUCE_API cudaError_t expect_agreement(const int64_t* notices, int64_t ranks, const int64_t* mine, int64_t* report,
                                           cudaStream_t stream);

}  // namespace gpureduce::cuda
