// Variances and means of the same elements, in one pass. Pure C++: no torch, no CUDA.
#pragma once

#include "dtypes.h"

namespace gpureduce {

// An element of which the difference from its output's first one is added. To plans it has this size, so that a thread has
// four neighbours' sums at most, of 16 bytes each.
template <class In>
struct alignas(sizeof(In) > 4 ? 8 : 4) Deviation {
  In element;
};

// The two.
template <class In>
struct Difference {
  In element, first;
};

namespace variance {

// The difference from an output's first element, and its square. Differences keep the digits that elements far from zero share
// from being lost. They are taken in double precision, or an outlier as first element would spoil all of them.
GPUREDUCE_HOST_DEVICE Moments moments_of(double x, double first) {
  const double d = x - first;
  return {d, d * d};
}

// What becomes of their sums. For example 5, 7, 9: the differences are 0, 2, 4, the sums 6 and 20, the mean 5 + 6 / 3 = 7, and
// with a correction of 1 the variance (20 - 6 · 2) / 2 = 4.
struct Finishing {
  int64_t count;      // elements of an output
  double correction;  // of the count, in the variance's divisor
  bool root;          // the standard deviation is wanted

  struct Results { double variance, mean; };
  GPUREDUCE_HOST_DEVICE Results operator()(Moments m, double first) const {
    const double n = static_cast<double>(count), divisor = n - correction, mean = m.sum / n;
    double sum = m.squares - m.sum * mean;
    if (sum < 0) sum = 0;  // but for roundings it is not
    const double variance = sum / (divisor > 0 ? divisor : 0);
    return {root ? sqrt(variance) : variance, first + mean};
  }
};

// Whether kernels are compiled for differences of such elements.
constexpr bool is_compiled(DType in) { return info(in).kind == Kind::floating && info(in).size > 1; }

}  // namespace variance

template <class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc addend(Difference<In> x) {
  return variance::moments_of(value(x.element), value(x.first));
}

}  // namespace gpureduce
