// The start of the kernels of exact sums of rows and columns, which have machine code alone.
#pragma once

#include "../core/cuda/launch.h"
#include "../core/problem/exact.h"
#include "exact.cuh"

namespace gpureduce::cuda {

// Starts the plan's kernel, which is not `any`.
cudaError_t start_exact(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, Queue queue);

}  // namespace gpureduce::cuda
