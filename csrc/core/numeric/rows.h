// Functions that keep their input's shape: what they add up per row, and what each element becomes given the row's results. One
// source for CPU and GPU, so that bits agree everywhere. Pure C++: no torch, no CUDA.
//
// For example softmax of the row 1, 3, 2. The largest element is 3; the addends are e^-2, e^0 and e^-1, their sum is 1.5032.
// The row keeps (3, 1 / 1.5032), and the second element becomes e^(3 - 3) * 0.6652 = 0.6652.
#pragma once

#include <cmath>

#include "dtypes.h"
#include "exponential.h"

namespace gpureduce {

// x: an element; g: the incoming gradient's; w, b: of weight and bias, 1 and 0 if there is none; n: elements of the row.
// m, S, T: the row's largest element and its sums. Each operation is rounded once.
//
// softmax               S = sum of e^(x - m)                                y = e^(x - m) * (1 / S)
// log_softmax           the same                                            y = (x - m) - log(S)
// log_sum               the same, for log_prob: m and log(S) per row          no y
// quotient              S = sum of x, T = sum of g: S / T (row_loss.h)        no y
// rms_norm              S = sum of x * x, r = 1 / sqrt(S / n + eps)         y = (x * r) * w
// layer_norm            c = (sum of x) / n; S = sum of x - c, T = sum of (x - c) * (x - c), t = S / n,
//                       mean = c + t, r = 1 / sqrt((T - S * t) / n + eps)   y = ((x - mean) * r) * w + b
// softmax_backward      x is softmax's result: S = sum of g * x             y = (g - S) * x
// log_softmax_backward  x is log_softmax's result: S = sum of g             y = g - e^x * S
// rms_norm_backward     d = g * w, h = x * r: S = sum of d * h              y = (d - h * (S / n)) * r
// layer_norm_backward   d = g * w, h = (x - mean) * r: S = sum of d,
//                       T = sum of d * h                                    y = ((d - S / n) - h * (T / n)) * r
// log_prob_backward     m, log(S) and the incoming gradient G per row         y = (G at the target, otherwise 0)
//                                                                                 - e^((x - m) - log(S)) * G
#define GPUREDUCE_ROW_FUNCTIONS(X) \
  X(softmax)                       \
  X(log_softmax)                   \
  X(log_sum)                       \
  X(quotient)                      \
  X(rms_norm)                      \
  X(layer_norm)                    \
  X(softmax_backward)              \
  X(log_softmax_backward)          \
  X(rms_norm_backward)             \
  X(layer_norm_backward)           \
  X(log_prob_backward)

// center: c of a layer_norm, which is summed before the differences from it. No call is of this function.
enum class RowFunction : uint8_t {
#define GPUREDUCE_ROW_FUNCTION(name) name,
  GPUREDUCE_ROW_FUNCTIONS(GPUREDUCE_ROW_FUNCTION)
#undef GPUREDUCE_ROW_FUNCTION
      center
};

constexpr bool takes_largest(RowFunction f) {
  return f == RowFunction::softmax || f == RowFunction::log_softmax || f == RowFunction::log_sum;
}
constexpr bool is_backward(RowFunction f) { return f >= RowFunction::softmax_backward && f != RowFunction::center; }
// A gradient per element; the one of log_prob_backward is per row.
constexpr bool takes_grad(RowFunction f) {
  return f == RowFunction::quotient || (is_backward(f) && f != RowFunction::log_prob_backward);
}
constexpr bool has_sum(RowFunction f) { return f != RowFunction::log_prob_backward; }
constexpr bool is_norm(RowFunction f) {
  return f == RowFunction::rms_norm || f == RowFunction::layer_norm || f == RowFunction::rms_norm_backward ||
         f == RowFunction::layer_norm_backward;
}
constexpr bool has_result(RowFunction f) { return f != RowFunction::log_sum && f != RowFunction::quotient; }
// A row's mean and r, or m and log(S): forward passes of norms, and log_sum, write them, and backward passes read them.
constexpr bool writes_numbers(RowFunction f) {
  return f == RowFunction::rms_norm || f == RowFunction::layer_norm || f == RowFunction::log_sum;
}
constexpr bool reads_numbers(RowFunction f) {
  return f == RowFunction::rms_norm_backward || f == RowFunction::layer_norm_backward || f == RowFunction::log_prob_backward;
}
constexpr bool has_mean(RowFunction f) { return f != RowFunction::rms_norm && f != RowFunction::rms_norm_backward; }

// What a row is known by when its elements are applied: m and 1 / S or log(S); mean and r; and the sums of a backward pass.
template <class A>
struct RowNumbers {
  A mean = 0, r = 0;             // m and 1 / S, m and log(S), or of norms; of a layer_norm c, until its mean is known
  A first_share = 0, share = 0;  // S / n and T / n, or S
};

// One element of the operands.
template <class A>
struct RowElement {
  A x, g, w, b;
};

// Two sums.
template <class A>
struct TwoSums {
  A first, second;
};
template <class A>
GPUREDUCE_HOST_DEVICE TwoSums<A> operator+(TwoSums<A> a, TwoSums<A> b) {
  return {a.first + b.first, a.second + b.second};
}

template <class A>
GPUREDUCE_HOST_DEVICE TwoSums<A> with_square(A x) {
  return {x, x * x};
}

// What is added up for an element. A: float or double.
template <RowFunction f, class A>
GPUREDUCE_HOST_DEVICE auto row_addend(const RowElement<A>& e, const RowNumbers<A>& row) {
  if constexpr (takes_largest(f)) return exponential_or_zero(e.x - row.mean);
  else if constexpr (f == RowFunction::rms_norm) return e.x * e.x;
  else if constexpr (f == RowFunction::center) return e.x;
  else if constexpr (f == RowFunction::layer_norm) return with_square(e.x - row.mean);
  else if constexpr (f == RowFunction::softmax_backward) return e.g * e.x;
  else if constexpr (f == RowFunction::log_softmax_backward) return e.g;
  else if constexpr (f == RowFunction::rms_norm_backward) return (e.g * e.w) * (e.x * row.r);
  else if constexpr (f == RowFunction::log_prob_backward) return A(0);  // there is no sum
  else if constexpr (f == RowFunction::quotient) return TwoSums<A>{e.x, e.g};
  else return TwoSums<A>{e.g * e.w, (e.g * e.w) * ((e.x - row.mean) * row.r)};
}

// The addend of an element that does not exist: the identity of the addends' sum.
template <class Sum>
GPUREDUCE_HOST_DEVICE Sum no_addend() {
  if constexpr (std::is_floating_point_v<Sum>) return Sum(-0.0);
  else return {-0.0f, -0.0f};
}

// The row's numbers from its sum. Those of a backward pass keep what the forward pass wrote.
template <RowFunction f, class A, class Sum>
GPUREDUCE_HOST_DEVICE void finish_row(RowNumbers<A>& row, Sum sum, int64_t length, double eps) {
  const A n = static_cast<A>(length);
  if constexpr (takes_largest(f)) {
    // Of infinities and NaN the difference x - m is NaN, which the exponential's bits do not keep.
    if (!(row.mean > -INFINITY && row.mean < INFINITY)) row.r = NAN;
    else row.r = f == RowFunction::softmax ? A(1) / sum : static_cast<A>(logarithm(static_cast<double>(sum)));
  } else if constexpr (f == RowFunction::rms_norm) {
    const A mean_square = sum / n, shifted = mean_square + static_cast<A>(eps);
    row.r = A(1) / static_cast<A>(sqrt(shifted));
  } else if constexpr (f == RowFunction::center) {
    row.mean = sum / n;
  } else if constexpr (f == RowFunction::layer_norm) {
    const A more = sum.first / n, squares = sum.second - sum.first * more;
    const A variance = (squares < 0 ? A(0) : squares) / n, shifted = variance + static_cast<A>(eps);  // < 0 by rounding
    row.mean = row.mean + more;
    row.r = A(1) / static_cast<A>(sqrt(shifted));
  } else if constexpr (f == RowFunction::layer_norm_backward) {
    row.first_share = sum.first / n;
    row.share = sum.second / n;
  } else if constexpr (f == RowFunction::rms_norm_backward) {
    row.share = sum / n;
  } else if constexpr (f != RowFunction::quotient) {
    row.share = sum;
  }
}

// What an element becomes.
template <RowFunction f, class A>
GPUREDUCE_HOST_DEVICE A row_applied(const RowElement<A>& e, const RowNumbers<A>& row) {
  if constexpr (f == RowFunction::softmax) return exponential_or_zero(e.x - row.mean) * row.r;
  else if constexpr (f == RowFunction::log_softmax) return (e.x - row.mean) - row.r;
  else if constexpr (!has_result(f)) return A(0);
  else if constexpr (f == RowFunction::rms_norm) return (e.x * row.r) * e.w;
  else if constexpr (f == RowFunction::layer_norm) return ((e.x - row.mean) * row.r) * e.w + e.b;
  else if constexpr (f == RowFunction::softmax_backward) return (e.g - row.share) * e.x;
  else if constexpr (f == RowFunction::log_softmax_backward) return e.g - whole_exponential(e.x) * row.share;
  else if constexpr (f == RowFunction::rms_norm_backward) return (e.g * e.w - (e.x * row.r) * row.share) * row.r;
  else if constexpr (f == RowFunction::log_prob_backward) return e.g - whole_exponential((e.x - row.mean) - row.r) * row.share;
  else return ((e.g * e.w - row.first_share) - ((e.x - row.mean) * row.r) * row.share) * row.r;
}

// The addend of a weight's gradient, and of a bias's: sums over all rows, in their logical order.
template <class A>
GPUREDUCE_HOST_DEVICE A weight_addend(A x, A g, A mean, A r) {
  return g * ((x - mean) * r);
}

// Calls `f` with this function, as a compile-time constant.
template <class F>
auto with_row_function(RowFunction function, F f) {
  switch (function) {
#define GPUREDUCE_ROW_FUNCTION(name) \
  case RowFunction::name: return f(std::integral_constant<RowFunction, RowFunction::name>());
    GPUREDUCE_ROW_FUNCTIONS(GPUREDUCE_ROW_FUNCTION)
#undef GPUREDUCE_ROW_FUNCTION
    case RowFunction::center: break;  // no call's
  }
  return f(std::integral_constant<RowFunction, RowFunction::softmax>());
}

}  // namespace gpureduce
