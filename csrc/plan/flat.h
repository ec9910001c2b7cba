// flat: short rows. Neighbouring threads take one, a load each or a few, and have loads of several rows in flight.
#pragma once

#include "limits.h"

namespace gpureduce {

struct FlatPlan {
  static constexpr const char* kName = "flat";
  int width, groups;  // loads of a row side by side, and groups of 32 of them: powers of two
};

// Groups of 32 loads of so many bytes, a vector each, that a row has at most: a chunk's, but no more of single elements of 16
// bytes than registers hold.
GPUREDUCE_HOST_DEVICE constexpr int flat_groups(int bytes, int vector) {
  return bytes == kGranule && vector == 1 ? 4 : kLanes / (kWarp * vector);
}

// Loads that a thread keeps in flight, of rows of up to 32 loads, or else of several groups. Of rows that are not dense more,
// whose places are worked out first. `lane`: bytes of a lane's sum, of which a thread has one a load.
GPUREDUCE_HOST_DEVICE constexpr int flat_loads(int bytes, int vector, bool dense, bool grouped, int lane) {
  const int few = lane > 8 && vector > 1 ? 8 : 4;  // vectors' sums are joined across the warp, the more at once the better
  const int loads = bytes == kGranule || lane > 8 ? few : dense ? 8 : 16, most = flat_groups(bytes, vector);
  return grouped && most > loads ? most : loads;
}

}  // namespace gpureduce
