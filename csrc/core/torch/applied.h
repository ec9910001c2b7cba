// The formulas of apply.h as an operator on tensors, which gradients call.
#pragma once

#include <ATen/core/Tensor.h>

#include "../numeric/apply.h"

namespace gpureduce {

// The other operands of a formula. Tensors have the elements' rank, and are broadcast to them. The number of the call is
// count - correction, or 0 if that is negative.
struct Given {
  at::Tensor grad = {}, result = {}, more = {};
  c10::SymInt count = 1;
  double correction = 0;
};

// Applies the formula to each element, and rounds once to `dtype`. For complex elements `dtype` is complex, and the formula is
// applied to both parts. The result has the elements' memory layout if no two elements overlap.
at::Tensor apply(Formula formula, const at::Tensor& self, Given given, at::ScalarType dtype);

// x * y and x / y, of one floating dtype; y broadcasts to x. By torch's operators a compiler could round otherwise: Inductor
// fuses a product with the sum behind it, and divides with other digits.
at::Tensor multiplied(const at::Tensor& x, at::Tensor y);
at::Tensor divided(const at::Tensor& x, at::Tensor y);

// A number of the host, of the dtype and the rank of `like`.
at::Tensor number_like(double number, const at::Tensor& like);

// The elements as formulas see them, for comparisons by torch's operators, without a gradient. A DTensor's Partial placements
// are joined in our order: torch would add them in another one, with other bits. Other tensors are as they are.
at::Tensor compared(const at::Tensor& self);

}  // namespace gpureduce
