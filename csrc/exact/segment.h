// Exact sums of segments on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/plan/gpu.h"
#include "../core/problem/segment.h"

namespace gpureduce::cuda {

// The bytes of workspace that a call needs. They need not be initialised.
GPUREDUCE_API int64_t exact_segments_workspace(const Segments& segments, const Device& device);

// The correctly rounded sums of all segments, of real elements and a floating result. There is no gather. Wrong offsets: as for
// run_segments().
GPUREDUCE_API cudaError_t run_exact_segments(const Segments& segments, void* workspace, const Device& device,
                                             cudaStream_t stream);

}  // namespace gpureduce::cuda
