// ring_rows: short rows at odd addresses, through a ring of stages in shared memory, which bulk copies fill far ahead.
#pragma once

#include "../../plan/limits.h"

namespace gpureduce {

constexpr int kMaxRingWarps = 16;    // warps a block
constexpr int kRingStageBytes = 32;  // that a stage takes besides its own: a note and a barrier
constexpr int kRingBlocks = 2;       // a multiprocessor
constexpr int kWholeRowWords = 256;  // of 4 bytes, of a row that a thread takes alone

struct RingPlan {
  static constexpr const char* kName = "ring_rows";
  int32_t stages, stage_bytes;  // a warp has
  int32_t pitch;                // bytes between rows, which stand in a stage as in memory
  int width, groups;            // reads of a row side by side, and groups of 32 of them; 0: a thread takes whole rows

  int64_t shared_bytes(int warps) const { return int64_t{warps} * stages * (stage_bytes + kRingStageBytes); }
};

// Whether it takes rows of elements of this size, and whether its threads share them: words are read as well in pieces.
GPUREDUCE_HOST_DEVICE constexpr bool rings_rows(int size) { return size <= 4; }
GPUREDUCE_HOST_DEVICE constexpr bool shares_rows(int size) { return size < 4; }

// Whether the quotients of means are left to the join: a division in the code of bytes costs the sum as well.
GPUREDUCE_HOST_DEVICE constexpr bool ring_leaves_quotients(int size) { return size == 1; }

}  // namespace gpureduce
