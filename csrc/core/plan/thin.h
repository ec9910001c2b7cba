// thin: a thread takes all elements of its outputs, if there are few per output.
#pragma once

#include "limits.h"

namespace gpureduce {

struct ThinPlan {
  static constexpr const char* kName = "thin";
  int elements;  // per output: 2, 4 or 8, all in flight at once; or more, for a whole column in several rounds
  int runs;      // runs of outputs per thread
};

// Runs of outputs per thread, if it takes several: as many as keep kLoads loads in flight, or twice as many for elements of up
// to four bytes. Only one with vectors, because results are written meanwhile.
GPUREDUCE_HOST_DEVICE constexpr int thin_runs(int vector, int elements, int size) {
  return vector > 1 ? 1 : (size <= 4 ? 2 : 1) * kLoads / elements;
}

// True if a thread takes whole columns of more than kLoads elements with such vectors. Vectors of bytes have too many sums.
GPUREDUCE_HOST_DEVICE constexpr bool wholes_columns(int vector) { return vector <= 8; }

}  // namespace gpureduce
