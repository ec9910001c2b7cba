// Formulas of each element and the results of its output: the gradients of reductions. One source for CPU and GPU, so that a
// gradient has the same bits alone, in a batch, in any layout and on any device. Pure C++: no torch, no CUDA.
#pragma once

#include <cmath>

#include "exponential.h"

namespace gpureduce {

// y as a function of an element x, up to three numbers of its output (g: the incoming gradient; r, m: results), and a number
// of the call. Each operation is rounded once.
//
// quotient      x / number
// kept          g, or 0 where x is NaN
// product       x * g
// exponent      g * e^(x - r); 0 where r is -inf (then all elements of the output are), or m is 0
// equal         (g where x == r, otherwise 0) / m
// share         g where x == r, NaN where r is NaN, otherwise 0
// sign          sgn(x) * g
// extreme       sgn(x) * g / m where |x| == r or x is NaN, otherwise 0
// ratio         (x / r) * g; 0 where r is 0
// square        (x * |x|) * g
// ratio_square  (x / r) * |x / r| * g; 0 where r is 0
// deviation     (x - r) * g + m
// added         x + g * m; x where r is 0
// divided       x / r
// inverse_root  1 / sqrt(x + g)
// silu          (x / (1 + e^-x)) * g
// silu_slope    the derivative of x / (1 + e^-x)
// entropy       e^x * x, or 0 where x is -inf: p * log(p) of the logarithm of a probability p
// others        g times the product of the output's other elements; r: the product of its non-zero elements, m: their count,
//               `number`: the count of all elements
//
// Of functions that keep their input's shape (rows.h), where no kernel takes whole rows:
// softmax               e^(x - g) * r, or 0 where m is 0; g: the row's largest element, r: 1 / S
// log_softmax           (x - g) - r; r: log(S)
// softmax_backward      (g - r) * x, or 0 where m is 0; x: softmax's result, g: the incoming gradient, r: the sum of g * x
// log_softmax_backward  g - e^x * r; x: log_softmax's result, r: the sum of g
#define GPUREDUCE_FORMULAS(X) \
  X(quotient)                 \
  X(kept)                     \
  X(product)                  \
  X(exponent)                 \
  X(equal)                    \
  X(share)                    \
  X(sign)                     \
  X(extreme)                  \
  X(ratio)                    \
  X(square)                   \
  X(ratio_square)             \
  X(deviation)                \
  X(added)                    \
  X(divided)                  \
  X(inverse_root)             \
  X(silu)                     \
  X(silu_slope)               \
  X(entropy)                  \
  X(others)                   \
  X(softmax)                  \
  X(log_softmax)              \
  X(softmax_backward)         \
  X(log_softmax_backward)

enum class Formula : uint8_t {
#define GPUREDUCE_FORMULA(name) name,
  GPUREDUCE_FORMULAS(GPUREDUCE_FORMULA)
#undef GPUREDUCE_FORMULA
};

// True if a formula is computed in float64 for all dtypes, as for differences from a mean far from zero.
constexpr bool is_wide(Formula f) { return f == Formula::deviation || f == Formula::others; }

// The default value of a missing g, r or m.
constexpr double missing(Formula f, int other) { return f == Formula::deviation && other == 2 ? 0 : 1; }

constexpr int kOthers = 3;  // g, r and m

template <class A>
GPUREDUCE_HOST_DEVICE A sign_of(A x) {
  return static_cast<A>((x > 0) - (x < 0));
}

template <class A>
GPUREDUCE_HOST_DEVICE A magnitude_of(A x) {
  return x < 0 ? -x : x;
}

// Both take e^-|x|, which is at most 1.
template <class A>
GPUREDUCE_HOST_DEVICE A silu(A x) {
  const A e = whole_exponential(x < 0 ? x : -x);
  return (x < 0 ? x * e : x) / (A(1) + e);
}
template <class A>
GPUREDUCE_HOST_DEVICE A silu_slope(A x) {
  const A e = whole_exponential(x < 0 ? x : -x), large = A(1) / (A(1) + e), small = e / (A(1) + e);
  return x < 0 ? small * (A(1) + x * large) : large * (A(1) + x * small);
}

// A: float, or double, which it must be where is_wide().
template <Formula f, class A>
GPUREDUCE_HOST_DEVICE A applied(A x, A g, A r, A m, A number) {
  if constexpr (f == Formula::quotient) return x / number;
  else if constexpr (f == Formula::kept) return x != x ? A(0) : g;
  else if constexpr (f == Formula::product) return x * g;
  else if constexpr (f == Formula::exponent) return r == -INFINITY || m == 0 ? A(0) : g * whole_exponential(x - r);
  else if constexpr (f == Formula::equal) return (x == r ? g : A(0)) / m;
  else if constexpr (f == Formula::share) return x == r ? g : r != r ? r : A(0);
  else if constexpr (f == Formula::sign) return sign_of(x) * g;
  else if constexpr (f == Formula::extreme) return magnitude_of(x) == r || x != x ? sign_of(x) * (g / m) : A(0);
  else if constexpr (f == Formula::ratio) return r == 0 ? A(0) : x / r * g;
  else if constexpr (f == Formula::square) return x * magnitude_of(x) * g;
  else if constexpr (f == Formula::ratio_square) return r == 0 ? A(0) : x / r * magnitude_of(x / r) * g;
  else if constexpr (f == Formula::deviation) return (x - r) * g + m;
  else if constexpr (f == Formula::added) return r == 0 ? x : x + g * m;
  else if constexpr (f == Formula::divided) return x / r;
  else if constexpr (f == Formula::inverse_root) return A(1) / static_cast<A>(sqrt(x + g));
  else if constexpr (f == Formula::silu) return silu(x) * g;
  else if constexpr (f == Formula::silu_slope) return silu_slope(x);
  else if constexpr (f == Formula::entropy) return x == -INFINITY ? A(0) : whole_exponential(x) * x;
  else if constexpr (f == Formula::softmax) return m == 0 ? A(0) : exponential_or_zero(x - g) * r;
  else if constexpr (f == Formula::log_softmax) return (x - g) - r;
  else if constexpr (f == Formula::softmax_backward) return m == 0 ? A(0) : (g - r) * x;
  else if constexpr (f == Formula::log_softmax_backward) return g - whole_exponential(x) * r;
  else return number - m == 0 ? r / x * g : number - m == 1 && x == 0 ? r * g : r * A(0) * g;
}

// Calls `f` with the formula as a compile-time constant.
template <class F>
GPUREDUCE_HOST_DEVICE void with_formula(Formula formula, F f) {
  switch (formula) {
#define GPUREDUCE_FORMULA(name) \
  case Formula::name: return f(std::integral_constant<Formula, Formula::name>());
    GPUREDUCE_FORMULAS(GPUREDUCE_FORMULA)
#undef GPUREDUCE_FORMULA
  }
}

// An element as a number of type A, in which the formula is computed.
template <class A, class T>
GPUREDUCE_HOST_DEVICE A operand(T x) {
  return static_cast<A>(value(x));
}

}  // namespace gpureduce
