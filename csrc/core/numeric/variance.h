// Variance and mean of the same elements, in one pass. Pure C++: no torch, no CUDA.
#pragma once

#include "dtypes.h"

namespace gpureduce {

// An element whose difference from its output's first element is summed. Planners see its padded size, so a thread keeps sums
// of at most four neighbours, of 16 bytes each.
template <class In>
struct alignas(sizeof(In) > 4 ? 8 : 4) Deviation {
  In element;
};

// Both operands of a deviation, loaded.
template <class In>
struct Difference {
  In element, first;
};

namespace variance {

// The difference from an output's first element, and its square. Squares of differences keep their digits where all elements
// lie far from zero. Differences are in double precision, since an outlier as first element would spoil all of them in float.
GPUREDUCE_HOST_DEVICE Moments moments_of(double x, double first) {
  const double d = x - first;
  return {d, d * d};
}

// Computes variance and mean from the moments. For example 5, 7, 9: the differences are 0, 2, 4, the sums 6 and 20, the mean
// 5 + 6 / 3 = 7, and with a correction of 1 the variance (20 - 6 · 2) / 2 = 4.
struct Finishing {
  int64_t count;      // elements of an output
  double correction;  // the variance's divisor is count - correction
  bool root;          // return the standard deviation as `variance`

  struct Results { double variance, mean; };
  GPUREDUCE_HOST_DEVICE Results operator()(Moments m, double first) const {
    const double n = static_cast<double>(count), divisor = n - correction, mean = m.sum / n;
    double sum = m.squares - m.sum * mean;
    if (sum < 0) sum = 0;  // only by rounding
    const double variance = sum / (divisor > 0 ? divisor : 0);
    return {root ? sqrt(variance) : variance, first + mean};
  }
};

// True if kernels are compiled for deviations of elements of this dtype.
constexpr bool is_compiled(DType in) { return info(in).kind == Kind::floating && info(in).size > 1; }

}  // namespace variance

template <class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc addend(Difference<In> x) {
  return variance::moments_of(value(x.element), value(x.first));
}

}  // namespace gpureduce
