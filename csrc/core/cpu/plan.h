// From a reduction to tasks: the tiles of accumulators, and the part of the work that a thread takes at a time. Pure C++: no
// torch, and no std here, since the kernels include this (kernels.inl).
//
// The order of additions is fixed per *leaf* (order.h), so a plan may cut the work between any aligned power-of-two runs of
// leaves. It decides speed and never changes a bit.
#pragma once

#include "problem.h"

namespace gpureduce::cpu {

constexpr int64_t kGrain = 32768;        // fewest elements per thread, as in torch
constexpr int64_t kTileBytes = 16384;    // of a tile's accumulators
constexpr int64_t kBufferBytes = 32768;  // least size of the buffer for gathered elements
constexpr int64_t kExactLanes = 64;      // lanes of one column of integers, which stay in registers
constexpr int64_t kPlaceBytes = 40;      // most bytes of PieceVectors per vector of a chunk

// The facts about the machine that a plan depends on.
struct Facts {
  int threads;          // that a call may use
  int vector_bytes;     // of the instruction set
  int64_t cache_bytes;  // of a core's L2 cache
};

// The accumulators that stay in the L1 cache: `leaves` neighbouring leaves, a power of two, for each of some rows and columns.
struct Tile {
  int64_t rows, leaves, width;
  bool wide;     // many columns of short leaves fill the tile: four neighbouring leaves are joined before they are written
  bool abreast;  // rows of one or two columns in short pieces: all rows of the tile take a chunk at a time
};

// One task: some rows and columns, and a run of their leaves (of their elements, if the order is free).
struct Task {
  int64_t first_row, rows;
  int64_t first_column, width;
  int64_t begin, end;
};

struct Plan {
  CpuProblem problem;
  int threads;
  bool shares_stream;  // a thread's share of the input is more than its core's cache
  Tile tile;
  int64_t positions;           // leaves of an output, or its elements if the order is free; splits cut them
  int64_t splits, split_size;  // split_size is a power of two, or all positions
  int64_t row_tiles, column_tiles;
  int64_t buffer_bytes;   // for gathered elements; PieceVectors lie behind the first kBufferBytes
  int64_t sums_bytes;     // for the sums of a task
  int64_t scratch_bytes;  // for all scratch memory of a kernel, the buffer included

  int64_t tasks() const { return row_tiles * column_tiles * splits; }
  Task task(int64_t i) const;
};

Plan make_plan(const Reduction& r, const Facts& facts);

}  // namespace gpureduce::cpu
