// The C++ interface of the CUDA kernels of segments. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/cuda/launch.h"
#include "../core/plan/segments.h"

namespace gpureduce::cuda {

struct SegmentsLaunch {
  const Segments& segments;
  const SegmentPlan& plan;
  const Device& device;
  void* workspace;  // plan.workspace_bytes
  Queue queue;
};

// Sums all segments. If offsets do not ascend, or lie outside the dim, the kernel stops with an assertion. It reads nothing
// outside the data.
GPUREDUCE_API cudaError_t run_segments(const SegmentsLaunch& launch);

// The same for the dtypes of a family, each added in its own accumulator.
template <Family family>
cudaError_t segments_of_family(const SegmentsLaunch& launch);

// Maxima and minima of float32, float16 and bfloat16.
cudaError_t segment_extrema(const SegmentsLaunch& launch);

// Sums of exponentials of float32, float16 and bfloat16.
cudaError_t segment_exponents(const SegmentsLaunch& launch);

}  // namespace gpureduce::cuda
