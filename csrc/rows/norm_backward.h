// The gradients of a norm's input, weight and bias in one kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/plan/rows.h"

namespace gpureduce::cuda {

// Writes the input's gradient, and per unit the partial sums of the weight's gradient and, of layer_norm, the bias's.
cudaError_t launch_norm_backward(const NormPlan& plan, const RowsCall& call, float* partials, const Device& device,
                                 cudaStream_t stream);

}  // namespace gpureduce::cuda
