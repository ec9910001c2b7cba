// Exact sums, as backends see them. Pure C++: no torch, no CUDA.
#pragma once

#include "geometry.h"

namespace gpureduce {

// The exact sum of each output's elements. The results are the nearest numbers of `out` to sum / divisor, or states
// (numeric/exact.h): int64s, whose strides in `problem` count states.
struct ExactSum {
  Problem problem;
  const void* input;
  void* output;
  DType in, out;  // a real dtype; a floating one, unless the results are states
  bool states;
  bool nan_is_zero;  // NaN counts as +0
  bool negate;       // the input is a lazily negated view
  uint64_t divisor;  // 1, or a mean's count
};

// The rounding of `count` states that lie one after the other, of inputs of float64 if they are wide.
struct ExactRounding {
  const int64_t* states;
  bool wide;
  void* output;
  DType out;
  int64_t count;
  uint64_t divisor;
};

}  // namespace gpureduce
