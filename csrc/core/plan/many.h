// How reductions of many arrays share one launch. Pure C++.
#pragma once

#include <algorithm>
#include <string>

#include "../api.h"
#include "../problem/geometry.h"
#include "gpu.h"
#include "limits.h"

namespace gpureduce::cuda {

constexpr int kMostArrays = 1024;     // per launch, limited by the room for parameters
constexpr int kManyWarps = 8;         // per block, which takes a tile of an array
constexpr int kMostTileChunks = 128;  // a power of two

// Contiguous elements.
struct Array {
  const void* data;
  int64_t length;
};

// Arrays of one dtype, each reduced to one number.
struct Arrays {
  const Array* arrays;
  int count;  // up to kMostArrays
  DType in, out;
};

struct ManyPlan {
  int tile_chunks = 1;
  int room = kMostArrays;       // for arrays in the parameters: a launch takes longer with larger ones
  int64_t tiles = 0, most = 0;  // in all, and of one array: if that is 1, no second kernel joins them
  int64_t bytes = 0;            // of the elements
  bool streams = false;         // the L2 evicts what is read first
  int join_threads = kWarp;     // of a block of the second kernel, which takes an array
  int64_t workspace_bytes = 0;  // of partial results

  GPUREDUCE_API std::string str(const Arrays& arrays) const;
};

inline int64_t tiles_of(const Array& array, int tile_chunks) {
  return std::max<int64_t>(1, ceil_div(array.length, int64_t{tile_chunks} * kChunk));
}

GPUREDUCE_API ManyPlan plan_many(const Arrays& arrays, const Device& device);

// True if there are kernels for these dtypes and this map.
GPUREDUCE_API bool takes_many(DType in, DType out, Map map);

}  // namespace gpureduce::cuda
