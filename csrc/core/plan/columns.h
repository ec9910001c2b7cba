// columns: a warp takes neighbouring columns, in any dims, and each thread takes neighbouring leaves of them.
#pragma once

#include "limits.h"

namespace gpureduce {

struct ColumnsPlan {
  static constexpr const char* kName = "columns";
  int width;     // threads of a warp side by side
  int elements;  // elements of a leaf that a thread has in flight: 1 or kDepth
  int batches;   // how many times it does so, for neighbouring leaves: 1 or column_batches()
};

// Vectors of lane sums that a block keeps in shared memory.
GPUREDUCE_HOST_DEVICE constexpr int column_slots(int vector) { return vector > 8 ? 128 : 512; }

// Elements per load. Vectors one stride apart are for the panels kernel.
GPUREDUCE_HOST_DEVICE constexpr int column_vector(int vector, Walk walk) { return walk == Walk::nested ? vector : 1; }

// Batches of leaves per thread, if it takes several. A batch of bytes is large already.
GPUREDUCE_HOST_DEVICE constexpr int column_batches(int vector) { return vector > 8 ? 2 : 4; }

}  // namespace gpureduce
