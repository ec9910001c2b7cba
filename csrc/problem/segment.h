// Sums of segments: runs of neighbours along one dim, delimited by a tensor of offsets. Pure C++.
#pragma once

#include "geometry.h"

namespace gpureduce {

struct Segments {
  Reduction reduction;  // of the whole dim; `output` is the first segment's
  const void* offsets;  // count + 1 contiguous int64 or int32
  bool wide;            // offsets are int64
  int64_t count;
  int64_t length;        // of the dim
  int64_t stride;        // of the dim
  int64_t result_pitch;  // from one segment's result to the next one's

  int64_t offset(int64_t i) const {  // offsets must be in host memory
    return wide ? static_cast<const int64_t*>(offsets)[i] : static_cast<const int32_t*>(offsets)[i];
  }
};

}  // namespace gpureduce
