// Sums of e^(x - m), where m is the largest element of x's output. Pure C++: no torch, no CUDA.
//
// For example the logsumexp of 1, 3, 2. m is 3, the addends are e^-2, e^0 and e^-1, their sum is 1.5032, and the result is
// 3 + log(1.5032) = 3.4076.
#pragma once

#include "exponential.h"

namespace gpureduce {

// An element x whose e^(x - m) is summed.
template <class T>
struct Exponent {
  T element;
};

// Both operands, loaded. A: float or double.
template <class In, class A>
struct Exponential {
  In element;
  A largest;
};

namespace exponents {

// The type of m and of the sum.
inline Accumulator accumulator_of(DType in) {
  return info(in).accumulator == Accumulator::f32 ? Accumulator::f32 : Accumulator::f64;
}
inline DType dtype_of(DType in) { return accumulator_of(in) == Accumulator::f32 ? DType::Float : DType::Double; }
template <class In>
using Computed = std::conditional_t<std::is_same_v<In, double>, double, float>;

// True if kernels are compiled for elements of this dtype.
constexpr bool is_compiled(DType in) { return info(in).kind == Kind::floating && info(in).size > 1; }

}  // namespace exponents

template <class Acc, class In, class A>
GPUREDUCE_HOST_DEVICE Acc addend(Exponential<In, A> x) {
  return exponential_or_zero(static_cast<A>(value(x.element)) - x.largest);
}

}  // namespace gpureduce
