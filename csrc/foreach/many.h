// Reductions of many arrays in one launch: each array is reduced to one number, in the contract's order. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/cuda/launch.h"
#include "../core/plan/many.h"

namespace gpureduce::cuda {

struct Many {
  Arrays arrays;
  Map map;
  void* results;    // contiguous
  void* workspace;  // the plan's
  Queue queue;
};

GPUREDUCE_API cudaError_t run_many(const Many& many, const ManyPlan& plan);

}  // namespace gpureduce::cuda
