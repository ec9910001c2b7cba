// From a reduction to tasks: which tiles of accumulators it is summed in, and which parts of it a thread takes at a time. Pure
// C++: no torch; and no std here, as the kernels include this (kernels.inl).
//
// The order of additions is fixed per *leaf* (order.h), so a plan may cut the work anywhere between aligned power-of-two runs
// of leaves: it decides speed and never a bit.
#pragma once

#include "problem.h"

namespace gpureduce::cpu {

constexpr int64_t kGrain = 32768;        // elements that are worth a thread, as in torch
constexpr int64_t kTileBytes = 16384;    // of accumulators in a tile
constexpr int64_t kBufferBytes = 32768;  // of gathered elements, at least
constexpr int64_t kExactLanes = 64;      // of one column of integers, which stay in registers
constexpr int64_t kPlaceBytes = 40;      // of PieceVectors, for each vector of a chunk, at most

// What a plan depends on, beside the reduction.
struct Facts {
  int threads;          // that may take part
  int vector_bytes;     // of the instruction set
  int64_t cache_bytes;  // of a core's own cache
};

// The accumulators that stay in the L1 cache: so many leaves, neighbours in the order, of each of some rows and columns.
// `leaves` is a power of two.
struct Tile {
  int64_t rows, leaves, width;
  bool wide;     // a row of many columns fills the tile with short leaves: four each are joined before they are written
  bool abreast;  // rows of one or two columns in short pieces: all rows of the tile take a chunk at a time
};

// One task: some rows and columns, and a run of their leaves, or where the order is free, of their elements.
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
  int64_t positions;           // that splits cut: leaves of an output, or its elements where the order is free
  int64_t splits, split_size;  // a split is a power of two of positions
  int64_t row_tiles, column_tiles;
  int64_t buffer_bytes;   // for gathered elements, and behind kBufferBytes of them for PieceVectors
  int64_t sums_bytes;     // for the sums of a task
  int64_t scratch_bytes;  // for all that a kernel takes, gathered elements included

  int64_t tasks() const { return row_tiles * column_tiles * splits; }
  Task task(int64_t i) const;
};

Plan make_plan(const Reduction& r, const Facts& facts);

}  // namespace gpureduce::cpu
