// flat: short rows. Neighbouring threads take a row, with one load or a few per thread, and have loads of several rows in
// flight.
#pragma once

#include "limits.h"

namespace gpureduce {

struct FlatPlan {
  static constexpr const char* kName = "flat";
  int width, groups;  // loads of a row side by side, and groups of 32 loads: powers of two
};

// The most groups of 32 loads per row, for loads of one vector of `bytes` bytes: as many as a chunk's lanes need, but no more
// single elements of 16 bytes than registers hold.
GPUREDUCE_HOST_DEVICE constexpr int flat_groups(int bytes, int vector) {
  return bytes == kGranule && vector == 1 ? 4 : kLanes / (kWarp * vector);
}

// Loads that a thread keeps in flight. `grouped`: rows have several groups of 32 loads. Rows that are not dense have more loads
// in flight, since their places are computed first. `lane`: bytes of the sum that a thread has per load.
GPUREDUCE_HOST_DEVICE constexpr int flat_loads(int bytes, int vector, bool dense, bool grouped, int lane) {
  // Sums of vectors are joined across the warp: the more at once, the better.
  const int wide_loads = lane > 8 && vector > 1 ? 8 : 4;
  const int loads = bytes == kGranule || lane > 8 ? wide_loads : dense ? 8 : 16, most = flat_groups(bytes, vector);
  return grouped && most > loads ? most : loads;
}

}  // namespace gpureduce
