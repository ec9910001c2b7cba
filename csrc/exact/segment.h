// Exact sums of segments on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/plan/exact.h"

namespace gpureduce::cuda {

// The correctly rounded sums of all segments, of real elements and a floating result. There is no gather. The workspace need
// not be initialised. Wrong offsets: as for run_segments().
GPUREDUCE_API cudaError_t run_exact_segments(const Segments& segments, const ExactSegmentPlan& plan, void* workspace,
                                             const Device& device, cudaStream_t stream);

}  // namespace gpureduce::cuda
