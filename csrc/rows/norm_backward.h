// The gradients of a norm's input, weight and bias in one kernel: which calls it takes, and how. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/plan/gpu.h"
#include "../core/problem/rows.h"

namespace gpureduce::cuda {

// How a block takes rows (norm_backward.cuh).
struct NormPlan {
  int vector = 0,
      depth = 0;    // neighbouring elements of a thread, and how many of these, 512 apart; 0: the kernel does not take it
  int threads = 0;  // of a group, which takes a row at a time
  int groups = 0;   // of a block: neighbouring lanes of rows
  int stages = 0;   // rows of a group in shared memory
  int shared_bytes = 0;
  int64_t units = 0;  // runs of `groups` lanes: each has a row of partial sums
};

// The plan for two calls with the same operands.
NormPlan norm_plan(const RowsCall& input, const RowWeightsCall& weights, const Device& device);

// Writes the input's gradient, and per unit the partial sums of the weight's gradient and, of layer_norm, the bias's.
cudaError_t launch_norm_backward(const NormPlan& plan, const RowsCall& call, float* partials, const Device& device,
                                 cudaStream_t stream);

}  // namespace gpureduce::cuda
