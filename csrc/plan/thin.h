// thin: a thread takes all elements of its outputs, if these are few.
#pragma once

#include "limits.h"

namespace gpureduce {

struct ThinPlan {
  static constexpr const char* kName = "thin";
  int elements;  // of an output, that are in flight at once: 2, 4 or 8; or more, and the thread goes on for a whole column
  int runs;      // of outputs, that a thread takes
};

// Runs of outputs that a thread takes where it takes several: as many as keep kLoads loads in flight, or twice as many of
// elements of up to four bytes; of vectors one, for results are written meanwhile.
GPUREDUCE_HOST_DEVICE constexpr int thin_runs(int vector, int elements, int size) {
  return vector > 1 ? 1 : (size <= 4 ? 2 : 1) * kLoads / elements;
}

constexpr int kTinyColumn = 2;  // elements of the shortest columns

// Columns that a thread takes whole, of more elements, side by side: vectors of bytes have too many sums.
GPUREDUCE_HOST_DEVICE constexpr bool wholes_columns(int vector) { return vector <= 8; }

}  // namespace gpureduce
