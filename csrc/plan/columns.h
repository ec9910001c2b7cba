// columns: a warp takes neighbouring columns, in any dims, and a thread neighbouring leaves of them.
#pragma once

#include "limits.h"

namespace gpureduce {

struct ColumnsPlan {
  static constexpr const char* kName = "columns";
  int width;     // threads of a warp side by side
  int elements;  // of a leaf, that a thread has in flight: 1, 2, 4 or kDepth
  int batches;   // how often it does that, for neighbouring leaves: once or column_batches()
};

// Vectors of lane sums that a block keeps in shared memory.
GPUREDUCE_HOST_DEVICE constexpr int column_slots(int vector) { return vector > 8 ? 128 : 512; }

// Elements of a load: vectors a stride apart are for the panels kernel.
GPUREDUCE_HOST_DEVICE constexpr int column_vector(int vector, Walk walk) { return walk == Walk::nested ? vector : 1; }

// Batches of leaves that a thread takes where it takes several. Of bytes a batch is large already.
GPUREDUCE_HOST_DEVICE constexpr int column_batches(int vector) { return vector > 8 ? 2 : 4; }

}  // namespace gpureduce
