// Variances and means of the same elements, in one pass. Pure C++: no torch, no CUDA.
#pragma once

#include "weighted.h"

namespace gpureduce::variance {

// The sum of the differences from an output's first element, and the sum of their squares, as the parts of a complex number.
// Differences keep the digits that elements far from zero share from being lost. They are taken in double precision, or an
// outlier as first element would spoil all of them.
using Moments = Complex<double>;

GPUREDUCE_HOST_DEVICE Moments moments_of(double x, double first) {
  const double d = x - first;
  return {d, d * d};
}

// What becomes of them.
struct Finishing {
  int64_t count;      // elements of an output
  double correction;  // of the count, in the variance's divisor
  bool root;          // the standard deviation is wanted

  struct Results { double variance, mean; };
  GPUREDUCE_HOST_DEVICE Results operator()(Moments m, double first) const {
    const double n = static_cast<double>(count), divisor = n - correction, mean = m.re / n;
    double sum = m.im - m.re * mean;
    if (sum < 0) sum = 0;  // but for roundings it is not
    const double variance = sum / (divisor > 0 ? divisor : 0);
    return {root ? sqrt(variance) : variance, first + mean};
  }
};

// Everything that a backend needs to know. The problem's second input is that of the first elements: the input's own, without
// the reduced dims' strides; and both results lie alike.
struct Reduction {
  weighted::Problem problem;
  weighted::Input input;
  void *variance, *mean;
  DType out;
  Finishing finishing;
};

}  // namespace gpureduce::variance
