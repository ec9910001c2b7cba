// How an exact sum is cut, and the start of its kernels of rows and columns, which have machine code alone.
#pragma once

#include "../core/cuda/launch.h"
#include "../core/problem/exact.h"
#include "exact.cuh"

namespace gpureduce::cuda {

struct ExactPlan {
  enum class Kernel : uint8_t { short_rows, rows, columns, any };

  Kernel kernel;
  int64_t parts = 1;
  int64_t part_size = 0;                // tiles of rows; otherwise rows of columns, or elements
  int64_t tiles = 0, tiles_of_run = 0;  // of an output's rows; of columns side by side
  bool aligned = false;
  bool repeats = false;  // a run of neighbours has one element of the second input
  int log_warps = 0, log_width = 0, log_lanes = 0;
  ShortRuns runs{};
};

// Starts the plan's kernel, which is not `any`. `streams`: the input is larger than the L2 should hold.
cudaError_t start_exact(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, bool streams, Queue queue);

}  // namespace gpureduce::cuda
