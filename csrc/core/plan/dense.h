// dense: rows in any dims. A warp takes a unit of neighbouring leaves of a row at a time.
#pragma once

#include "../problem/geometry.h"
#include "limits.h"

namespace gpureduce {

struct DensePlan {
  static constexpr const char* kName = "dense";
  int elements;  // elements of a leaf that a thread has in flight: 2 or kDepth
};

constexpr int kMaxDenseUnits = 128;            // most units per block
constexpr int kMaxDenseDepth = kMaxGridDepth;  // rows along y of the grid, if a block takes a part of a row

// True if 32 bits can count the rows, and the units of a row, as kernels compiled for a dtype do.
inline bool counts_rows(const Problem& p) { return p.outputs < kMaxGrid && p.length < kMaxGrid * kWarp * kDepth; }

// The least general walk that finds all elements of a row: Walk::nested finds them in two dims.
inline Walk dense_walk(Walk walk, const Problem& p) { return p.reduced.size() > 2 ? Walk::deep : walk; }

// Groups of 32 * vector leaves in a unit of a row, for elements of `size` bytes: as many as keep kLoads whole vectors in
// flight, or as many registers of single elements, but no more than a chunk has.
GPUREDUCE_HOST_DEVICE constexpr int row_groups(int vector, int elements, int size) {
  const int words = vector * size > 4 ? vector * size / 4 : 1, loads = kLoads * kGranule / 4 / words;
  const int in_flight = loads / elements, in_chunk = kLanes / (kWarp * vector);
  return in_flight < in_chunk ? in_flight : in_chunk;
}

// Bytes of an element in a thread's registers. Single elements of two inputs take a register each.
GPUREDUCE_HOST_DEVICE constexpr int register_bytes(int vector, int size, bool one_input) {
  return !one_input && vector == 1 && size < 8 ? 8 : size;
}

// Leaves of a row that a warp takes at a time; in a shifted row a whole chunk's.
GPUREDUCE_HOST_DEVICE constexpr int row_unit(int vector, int elements, int size, Walk walk = Walk::dense) {
  return walk == Walk::shifted ? kLanes : row_groups(vector, elements, size) * kWarp * vector;
}

// True if a chunk of this many elements is read as one of two elements per leaf.
GPUREDUCE_HOST_DEVICE constexpr bool is_short_chunk(int64_t elements) { return elements <= 2 * kLanes; }

// The most warps per block, and how many such blocks fit on a multiprocessor. 32 warps have 64 registers per thread. Shifted
// rows, and vectors with more than 32 bytes of lane sums, need a few more.
GPUREDUCE_HOST_DEVICE constexpr bool needs_registers(Walk walk, int sum_bytes) {
  return walk == Walk::shifted || sum_bytes > 32;
}
GPUREDUCE_HOST_DEVICE constexpr int dense_warps(Walk walk, int sum_bytes) {
  return needs_registers(walk, sum_bytes) ? 8 : kMaxRowWarps;
}
GPUREDUCE_HOST_DEVICE constexpr int dense_blocks(Walk walk, int sum_bytes) { return needs_registers(walk, sum_bytes) ? 3 : 2; }

// The elements beyond a row's last whole chunk, if a warp has at most one per thread; otherwise 0.
GPUREDUCE_HOST_DEVICE constexpr int row_rest(int64_t length) {
  return length > kChunk && length % kChunk <= kWarp ? static_cast<int>(length % kChunk) : 0;
}

// True if one warp takes a whole row; of a shifted row, also its rest.
GPUREDUCE_HOST_DEVICE constexpr bool fits_warp(int64_t leaves, int unit_leaves, Walk walk) {
  return leaves <= unit_leaves + (walk == Walk::shifted ? kWarp : 0);
}

}  // namespace gpureduce
