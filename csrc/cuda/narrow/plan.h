// narrow: a block takes runs of leaves of few dense columns, as pieces of memory.
#pragma once

#include "../../plan/limits.h"

namespace gpureduce {

constexpr int kMaxBatches = 4;  // runs of leaves that a block takes one after the other

struct NarrowPlan {
  static constexpr const char* kName = "narrow";
  int batches;  // runs a tile
};

// Warps that a multiprocessor runs at a time, of lane sums of so many words a vector.
GPUREDUCE_HOST_DEVICE constexpr int narrow_wave(int words) { return words > 16 ? 16 : 24; }

}  // namespace gpureduce
