// Exact sums, for other files' operators.
#pragma once

#include "../core/torch/backend.h"

namespace gpureduce::exact {

// Writes the exact results of an operation that has_exact(). `dtype` is the result's.
void compute(Operation op, at::ScalarType dtype, const at::Tensor& self, OptionalDims dim, const DimMask& reduce, bool keepdim,
             const at::Tensor& out);

// Writes the exact sums of the products of two real tensors, each rounded once, to a floating `out`. Both are broadcast.
void sum_products(const at::Tensor& self, const at::Tensor& weight, const DimMask& reduce, bool keepdim, const at::Tensor& out);

}  // namespace gpureduce::exact
