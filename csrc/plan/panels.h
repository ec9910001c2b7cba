// panels: a warp takes neighbouring columns in vectors, one stride from row to row, and a thread neighbouring leaves of them.
#pragma once

#include "limits.h"

namespace gpureduce {

constexpr int kMaxPanelLeaves = 4096;   // of a tile
constexpr int kLogPanelRows = 5;        // rows of a column that a thread joins at the end, at most 1 << 5
constexpr int kPanelBytes = 32 * 1024;  // of lane sums in shared memory
// Elements of 16 bits are added in 32 to the end of a tile.
static_assert(int64_t{kMaxPanelLeaves} * kDepth * 65535 <= INT32_MAX);

struct PanelsPlan {
  static constexpr const char* kName = "panels";
  int width, elements;  // as in ColumnsPlan
  int32_t units;        // of leaves, of a tile
  int32_t rows, parts;  // of lane sums in shared memory; threads that join a column's
};

// Warps that a multiprocessor runs at a time, as registers are cut: as many as do not spill. `words` are those of a vector of
// lane sums.
GPUREDUCE_HOST_DEVICE constexpr int panel_wave(int words, Walk walk) {
  if (words > 16) return 16;
  return walk == Walk::shifted ? 24 : 32;
}

// The fewest elements of a leaf for which there are kernels of shifted columns. Of leaves that are one byte in each of sixteen
// columns a thread has too many at a time.
GPUREDUCE_HOST_DEVICE constexpr int shifted_column_elements(int size) { return size == 1 ? 4 : 1; }

}  // namespace gpureduce
