// The start of the kernels of exact sums of segments that are compiled for a dtype, which have machine code alone.
#pragma once

#include "../core/cuda/launch.h"
#include "segment.cuh"

namespace gpureduce::cuda {

// Starts a kernel of a warp for each tile and column tile.
template <class Args>
cudaError_t start_warps(Queue queue, void (*kernel)(Args), int threads, int64_t warps, const Args& args) {
  const int64_t blocks = ceil_div(warps, threads / kWarp);
  if (blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  return start_kernel(queue, {static_cast<uint32_t>(blocks)}, threads, 0, kernel, args);
}

// Float, BFloat16, Half and Double.
cudaError_t start_exact_segments(DType in, const ExactSegmentArgs<kFastRank>& args, Queue queue);

}  // namespace gpureduce::cuda
