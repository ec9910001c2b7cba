// flat: short rows. Neighbouring threads take one, a load each or a few, and have loads of several rows in flight.
#pragma once

#include "../../plan/limits.h"

namespace gpureduce {

struct FlatPlan {
  static constexpr const char* kName = "flat";
  int width, groups;  // loads of a row side by side, and groups of 32 of them
};

// Groups of 32 loads of so many bytes, a vector each, that a row has at most: a chunk's, but no more of single elements of 16
// bytes than registers hold.
GPUREDUCE_HOST_DEVICE constexpr int flat_groups(int bytes, int vector) {
  return bytes == kGranule && vector == 1 ? 4 : kLanes / (kWarp * vector);
}

// Loads that a thread keeps in flight. Of rows that are not dense more, whose places are worked out first.
GPUREDUCE_HOST_DEVICE constexpr int flat_loads(int bytes, int groups, bool in_pieces) {
  const int loads = bytes == kGranule ? 4 : in_pieces ? 8 : 16;
  return groups > loads ? groups : loads;
}

// Threads that a row has at least: those that are compiled.
GPUREDUCE_HOST_DEVICE constexpr int flat_width(bool in_pieces, bool lean, int vector) {
  if (lean) return in_pieces ? 4 : 8;
  return in_pieces ? 1 : vector > 1 ? 16 : 4;
}

// Of lean kernels there are every other width of single elements, and every other number of groups.
GPUREDUCE_HOST_DEVICE constexpr int lean_flat_width(bool in_pieces, int width) {
  return !in_pieces && width == 16 ? 32 : width;
}
GPUREDUCE_HOST_DEVICE constexpr int lean_flat_groups(int groups) { return groups == 2 || groups == 8 ? 2 * groups : groups; }

// Whether rows are read as pieces of memory, of so many elements; or else in any dims, as by lean kernels are all single
// elements.
GPUREDUCE_HOST_DEVICE constexpr bool reads_pieces(Walk walk, int vector, int size, bool lean) {
  return walk == Walk::dense && vector * size >= 4 && (!lean || vector > 1 || size == kGranule);
}

}  // namespace gpureduce
