// Weighted sums on a GPU: raw pointers, a plan and a stream in; an error code out.
#pragma once

#include <cuda_runtime_api.h>

#include "../launch.h"
#include "plan.h"

namespace gpureduce::cuda {

struct WeightedLaunch {
  const weighted::Reduction& reduction;
  const WeightedPlan& plan;
  const Device& device;
  void* partials;  // plan.partials() accumulators
  Queue queue;
};

// Pairs of dtypes that kernels are compiled for, and those that are converted at run time.
cudaError_t reduce_weighted_typed(const WeightedLaunch& launch);
cudaError_t reduce_weighted_any(const WeightedLaunch& launch);

cudaError_t run_weighted(const WeightedLaunch& launch);

}  // namespace gpureduce::cuda
