// What the CUDA kernels of segments offer to C++. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../../segment.h"
#include "../launch.h"

namespace gpureduce::cuda {

struct SegmentsLaunch {
  const Segments& segments;
  int multiprocessors;
  int64_t l2_bytes;
  void* workspace;  // of workspace_of() bytes
  Queue queue;
};

// Bytes for sums of parts of segments.
int64_t workspace_of(const Segments& segments, int multiprocessors);

// Sums all segments. Offsets that do not ascend, or lie outside the dim, stop the kernel with an assertion; nothing outside the
// data is read.
cudaError_t run_segments(const SegmentsLaunch& launch);

// The same of the dtypes of a family, each added in its own accumulator.
template <Family family>
cudaError_t segments_of_family(const SegmentsLaunch& launch);

}  // namespace gpureduce::cuda
