// ring_rows: short rows at odd addresses, through a ring of stages in shared memory, which bulk copies fill far ahead.
#pragma once

#include "limits.h"

namespace gpureduce {

constexpr int kMaxRingWarps = 16;    // most warps per block
constexpr int kRingStageBytes = 32;  // bytes per stage besides its data: a note and a barrier
constexpr int kRingBlocks = 2;       // per multiprocessor
constexpr int kWholeRowWords = 256;  // most words of 4 bytes of a row that a thread takes alone

struct RingPlan {
  static constexpr const char* kName = "ring_rows";
  int32_t stages, stage_bytes;  // per warp
  int32_t pitch;                // bytes from row to row, in a stage as in memory

  int64_t shared_bytes(int warps) const { return int64_t{warps} * stages * (stage_bytes + kRingStageBytes); }
};

// True if it takes rows of elements of this size.
GPUREDUCE_HOST_DEVICE constexpr bool rings_rows(int size) { return size <= 4; }

}  // namespace gpureduce
