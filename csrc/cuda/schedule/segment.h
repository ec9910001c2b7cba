// What the CUDA kernels of segments offer to C++. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../../plan/segments.h"
#include "../launch.h"

namespace gpureduce::cuda {

struct SegmentsLaunch {
  const Segments& segments;
  const SegmentPlan& plan;
  const Device& device;
  void* workspace;  // plan.workspace_bytes
  Queue queue;
};

// Sums all segments. Offsets that do not ascend, or lie outside the dim, stop the kernel with an assertion; nothing outside the
// data is read.
cudaError_t run_segments(const SegmentsLaunch& launch);

// The same of the dtypes of a family, each added in its own accumulator.
template <Family family>
cudaError_t segments_of_family(const SegmentsLaunch& launch);

}  // namespace gpureduce::cuda
