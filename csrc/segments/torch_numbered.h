// Tables whose rows are chosen by number, on a GPU. Each function returns false, or an undefined tensor, if no kernel takes the
// call: on the CPU, and for rare layouts and dtypes. Callers then compose torch's functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "../core/numeric/apply.h"

namespace gpureduce {

// Writes to row i of `to`, along `dim`, the row numbers[i] of `from`; if `zeros`, 0 where that is negative.
bool copy_numbered(const at::Tensor& from, int64_t dim, const at::Tensor& numbers, const at::Tensor& to, bool zeros = false);

// To which segment each of `entries` entries belongs, or -1 if to none: int32.
at::Tensor number_entries(const at::Tensor& offsets, int64_t entries);

// A formula that has_numbered(), of elements x and of rows of float32 tables, one per segment along `dim`. Elements outside of
// all segments give 0. Of softmax_backward, g is no table but has x's sizes and dtype.
at::Tensor apply_numbered(Formula formula, const at::Tensor& x, int64_t dim, const at::Tensor& offsets, const at::Tensor& g,
                          const at::Tensor& r, at::ScalarType dtype);

}  // namespace gpureduce
