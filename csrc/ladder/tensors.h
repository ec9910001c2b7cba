// A Call's raw pointers as tensors, for the rungs that are operators of torch.
#pragma once

#include <ATen/ops/from_blob.h>

#include "rung.h"

namespace gpureduce::ladder {

inline at::TensorOptions options_of(const Call& call) {
  const at::ScalarType types[] = {at::kFloat, at::kDouble, at::kInt, at::kLong};
  return at::TensorOptions().dtype(types[static_cast<int>(call.dtype)]).device(at::kCUDA);
}

// On the current device, where the call's stream is the current one as well.
inline at::Tensor input_of(const Call& call) { return at::from_blob(call.input, {call.n}, options_of(call)); }
inline at::Tensor output_of(const Call& call) { return at::from_blob(call.output, {}, options_of(call)); }

}  // namespace gpureduce::ladder
