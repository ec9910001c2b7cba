#pragma once

#include "../api.h"
#include "../numeric/apply.h"

namespace gpureduce::cpu {

// Applies a formula to `n` elements. data and strides (in bytes): of the result, the elements, g, r and m; a missing g, r or m
// has a null pointer. `wide`: computes in float64.
GPUREDUCE_API void apply(Formula formula, bool wide, double number, const DType (&dtypes)[2 + kOthers],
                         char* const (&data)[2 + kOthers], const int64_t (&strides)[2 + kOthers], int64_t n);

}  // namespace gpureduce::cpu
