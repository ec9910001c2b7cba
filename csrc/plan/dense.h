// dense: rows in any dims. A warp takes a unit of neighbouring leaves of a row at a time.
#pragma once

#include "../problem/geometry.h"
#include "limits.h"

namespace gpureduce {

struct DensePlan {
  static constexpr const char* kName = "dense";
  int elements;  // of a leaf, that a thread has in flight: 2, 4 or kDepth
};

constexpr int kMaxDenseUnits = 128;            // units that a block takes
constexpr int kMaxDenseDepth = kMaxGridDepth;  // rows below each other in the grid, if blocks have a part of one

// Whether kernels compiled for a dtype can count such rows, and units of them, in 32 bits.
inline bool counts_rows(const Problem& p) { return p.outputs < kMaxGrid && p.length < kMaxGrid * kWarp * kDepth; }

// The least general walk that finds all elements of a row: nested ones are two dims.
inline Walk dense_walk(Walk walk, const Problem& p) { return p.reduced.size() > 2 ? Walk::deep : walk; }

// Groups of 32 * vector leaves that a unit of a row has, of elements of so many bytes: as many as keep kLoads whole vectors in
// flight, or as many registers' single elements, but no more than a chunk has.
GPUREDUCE_HOST_DEVICE constexpr int row_groups(int vector, int elements, int size) {
  const int words = vector * size > 4 ? vector * size / 4 : 1, loads = kLoads * kGranule / 4 / words;
  const int in_flight = loads / elements, in_chunk = kLanes / (kWarp * vector);
  return in_flight < in_chunk ? in_flight : in_chunk;
}

// Bytes of an element in a thread's registers: single elements of two inputs take a register each.
GPUREDUCE_HOST_DEVICE constexpr int register_bytes(int vector, int size, bool one_input) {
  return !one_input && vector == 1 && size < 8 ? 8 : size;
}

// Leaves that a warp takes at a time of a row; of a shifted one, a whole chunk's.
GPUREDUCE_HOST_DEVICE constexpr int row_unit(int vector, int elements, int size, Walk walk = Walk::dense) {
  return walk == Walk::shifted ? kLanes : row_groups(vector, elements, size) * kWarp * vector;
}

// Whether a chunk of so many elements is read as one of two a leaf.
GPUREDUCE_HOST_DEVICE constexpr bool is_short_chunk(int64_t elements) { return elements <= 2 * kLanes; }

// Warps that a block has at most, and blocks of so many that a multiprocessor has room for: shifted rows, and lane sums of more
// than 32 bytes a vector, need a few more registers than the 64 of 32 warps.
GPUREDUCE_HOST_DEVICE constexpr bool needs_registers(Walk walk, int sum_bytes) {
  return walk == Walk::shifted || sum_bytes > 32;
}
GPUREDUCE_HOST_DEVICE constexpr int dense_warps(Walk walk, int sum_bytes) {
  return needs_registers(walk, sum_bytes) ? 8 : kMaxRowWarps;
}
GPUREDUCE_HOST_DEVICE constexpr int dense_blocks(Walk walk, int sum_bytes) { return needs_registers(walk, sum_bytes) ? 3 : 2; }

// A few elements beyond a row's last whole chunk, which are no work for a warp.
GPUREDUCE_HOST_DEVICE constexpr int row_rest(int64_t length) {
  return length > kChunk && length % kChunk <= kWarp ? static_cast<int>(length % kChunk) : 0;
}

// Whether a warp takes such a row alone, of a shifted one with its rest.
GPUREDUCE_HOST_DEVICE constexpr bool row_alone(int64_t leaves, int unit_leaves, Walk walk) {
  return leaves <= unit_leaves + (walk == Walk::shifted ? kWarp : 0);
}

}  // namespace gpureduce
