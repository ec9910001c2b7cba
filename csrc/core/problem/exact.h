// Exact sums, as backends see them. Pure C++: no torch, no CUDA.
#pragma once

#include <algorithm>
#include <utility>

#include "../numeric/exact.h"
#include "geometry.h"

namespace gpureduce {

// What is added exactly: the input's elements, their squares, or their products with a second input's elements.
enum class ExactAddends : uint8_t { elements, squares, products };

// The powers of two that a fixed-point number counts (numeric/exact.h). It says what a state's size is.
enum class ExactRange : uint8_t { narrow, wide, products };

// Products of numbers that have at most 64 bits and float32's exponents are in float64's range.
constexpr ExactRange exact_range(ExactAddends addends, DType in, DType second) {
  if (addends == ExactAddends::elements) return in == DType::Double ? ExactRange::wide : ExactRange::narrow;
  const bool has_double = in == DType::Double || (addends == ExactAddends::products && second == DType::Double);
  return has_double ? ExactRange::products : ExactRange::wide;
}

// Calls `f` with a range of numeric/exact.h.
template <class F>
auto with_range(ExactRange range, F f) {
  switch (range) {
    case ExactRange::narrow: return f(exact::NarrowRange{});
    case ExactRange::wide: return f(exact::WideRange{});
    default: return f(exact::ProductRange{});
  }
}

// The exact sum of each output's addends. The results are the nearest numbers of `out` to sum / divisor, or to its square root,
// or states (numeric/exact.h): int64s, whose strides in `problem` count states.
struct ExactSum {
  Problem problem;
  const void* input;
  void* output;
  DType in, out;  // real dtypes; `out` is a floating one, unless the results are states
  bool states;
  bool nan_is_zero;  // NaN counts as +0; only of elements
  bool negate;       // the input is a lazily negated view
  uint64_t divisor;  // 1, or a mean's count
  ExactAddends addends;
  const void* second;  // the second input of products; its strides are `second` in the dims of `problem`
  DType second_dtype;
  bool second_negate;
  bool root;  // the square root is rounded, once; not of states; the divisor is 1

  ExactRange range() const { return exact_range(addends, in, second_dtype); }

  // The same sum as backends take it. Squares have the input as their second input. Of products, the second input is not larger
  // than the first one.
  ExactSum ordered() const {
    ExactSum sum = *this;
    if (addends == ExactAddends::squares) {
      for (KeptDim& d : sum.problem.kept) d.second = d.stride;
      for (ReducedDim& d : sum.problem.reduced) d.second = d.stride;
      sum.second = input;
      sum.second_dtype = in;
      sum.second_negate = negate;
    } else if (problem.second_larger) {
      sum.problem.swap_inputs();
      std::swap(sum.input, sum.second);
      std::swap(sum.in, sum.second_dtype);
      std::swap(sum.negate, sum.second_negate);
      // No order of elements shows, so the dims are sorted by the larger input's strides. Stride 0 is the slowest.
      std::stable_sort(sum.problem.reduced.begin(), sum.problem.reduced.end(), [](const ReducedDim& x, const ReducedDim& y) {
        return y.stride != 0 && (x.stride == 0 || x.stride > y.stride);
      });
    }
    return sum;
  }
};

// The rounding of `count` states that lie one after the other.
struct ExactRounding {
  const int64_t* states;
  ExactRange range;
  void* output;
  DType out;
  int64_t count;
  uint64_t divisor;
  bool root;
};

}  // namespace gpureduce
