// Variances on a GPU: the kernels of weighted sums, on an input and the first elements of its outputs.
#pragma once

#include "../../variance.h"
#include "../weighted/weighted.h"

namespace gpureduce::cuda {

// A call, planned.
struct Variances {
  Variances(const variance::Reduction& reduction, const Device& device, cudaStream_t stream);

  const variance::Reduction& reduction;
  const Device& device;
  cudaStream_t stream;
  weighted::Reduction pair;  // as a sum of two inputs
  WeightedPlan plan;
};

// Bytes of memory that a run needs.
int64_t workspace_of(const Variances& variances);

cudaError_t run_variances(const Variances& variances, void* workspace);

}  // namespace gpureduce::cuda
