// The formulas of apply.h as an operator of tensors, which gradients are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include "../numeric/apply.h"

namespace gpureduce {

// The numbers of outputs that a formula takes, each of the elements' rank, and broadcast to them; and the number of the call,
// which is count - correction, or 0 if that is negative.
struct Given {
  at::Tensor grad = {}, result = {}, more = {};
  c10::SymInt count = 1;
  double correction = 0;
};

// The formula of each element, rounded once to `dtype`, which is complex where the elements are: then it is applied to both of
// their parts. The result lies in memory as the elements do, if no two of them share a place.
at::Tensor apply(Formula formula, const at::Tensor& self, Given given, at::ScalarType dtype);

}  // namespace gpureduce
