// panels: a warp takes neighbouring columns in vectors, with one stride from row to row, and each thread takes neighbouring
// leaves of them.
#pragma once

#include "limits.h"

namespace gpureduce {

constexpr int kMaxPanelLeaves = 4096;   // per tile
constexpr int kLogPanelRows = 5;        // log2 of the most rows of a column that a thread joins at the end
constexpr int kPanelBytes = 32 * 1024;  // of lane sums in shared memory
// Elements of 16 bits are added in 32 bits over a whole tile.
static_assert(int64_t{kMaxPanelLeaves} * kDepth * 65535 <= INT32_MAX);

struct PanelsPlan {
  static constexpr const char* kName = "panels";
  int width, elements;  // as in ColumnsPlan, but elements may also be 2 or 4
  int32_t units;        // units of leaves per tile
  int32_t rows, parts;  // rows of lane sums in shared memory; threads that join them, per column
};

// Resident warps per multiprocessor: as many as leave enough registers to avoid spills. `words`: of a vector of lane sums.
GPUREDUCE_HOST_DEVICE constexpr int panel_wave(int words, Walk walk) {
  if (words > 16) return 16;
  return walk == Walk::shifted ? 24 : 32;
}

// The fewest elements per leaf for which there are kernels of shifted columns. With one byte per leaf in each of 16 columns, a
// thread would have too many leaves at a time.
GPUREDUCE_HOST_DEVICE constexpr int shifted_column_elements(int size) { return size == 1 ? 4 : 1; }

}  // namespace gpureduce
