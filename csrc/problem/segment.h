// Sums of segments: runs of neighbours along one dim, whose ends stand in a tensor of offsets. Pure C++.
#pragma once

#include "geometry.h"

namespace gpureduce {

struct Segments {
  Reduction reduction;  // of the whole dim; its results are the first segment's
  const void* offsets;  // count + 1 of them, one after the other, of int64 or int32
  bool wide;            // of int64
  int64_t count;
  int64_t length;        // of the dim
  int64_t stride;        // of its elements
  int64_t result_pitch;  // from a segment's result to the next one's

  int64_t offset(int64_t i) const {  // of offsets that the host can read
    return wide ? static_cast<const int64_t*>(offsets)[i] : static_cast<const int32_t*>(offsets)[i];
  }
};

}  // namespace gpureduce
