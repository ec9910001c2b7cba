// A logsumexp as calls that there are kernels for: the outputs' largest elements, then the sums of e^(x - m). What the calls
// leave is finished by logarithm_of_sum(). Pure C++.
#pragma once

#include "../api.h"
#include "../problem/geometry.h"

namespace gpureduce {

// The problem with its results side by side, in the order of the outputs' numbers.
GPUREDUCE_API Problem numbered(Problem problem);

// The calls that make a logsumexp `r`. Each writes one number per output to `to`, by its number.
// largest_elements  of exponents::dtype_of(r.in), but of the input's own dtype if that is an integer
// copied_numbers    numbers of dtype `from_dtype`, as exponents::dtype_of(r.in). `from` has the strides `second` of r.problem
// exponent_sums     of e^(x - m), with the m that `largest` has by number
GPUREDUCE_API Reduction largest_elements(const Reduction& r, void* to);
GPUREDUCE_API Reduction copied_numbers(const Reduction& r, const Problem& from_problem, const void* from, DType from_dtype,
                                       void* to);
GPUREDUCE_API Reduction exponent_sums(const Reduction& r, const void* largest, void* to);

}  // namespace gpureduce
