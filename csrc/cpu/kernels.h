// What the plan tells the kernels, and the kernels of each instruction set. No torch, no std: kernels.inl says why.
#pragma once

#include <utility>

#include "../dtypes.h"
#include "../geometry.h"

namespace gpureduce::cpu {

// Kept dims whose outputs a tile holds beside each other, `width` of them, are **columns**; all other kept dims are **rows**.
// A reduction along the fastest dim in memory has one column.
struct Dims {
  int rank = 0;
  ReducedDim dims[kMaxRank + 1];

  GPUREDUCE_HOST_DEVICE const ReducedDim& fastest() const { return dims[rank - 1]; }
};

// A place in dims, and its offset in elements.
class Cursor {
 public:
  GPUREDUCE_HOST_DEVICE Cursor(const Dims& dims, int64_t position) : dims_(dims), offset_(0), inner_(position) {
    for (int i = dims.rank - 1; i > 0; --i) {
      int64_t slower = position == 0 ? 0 : position / dims.dims[i].size;
      (i == dims.rank - 1 ? inner_ : index_[i]) = position - slower * dims.dims[i].size;
      offset_ += (position - slower * dims.dims[i].size) * dims.dims[i].stride;
      position = slower;
    }
    if (dims.rank > 1) index_[0] = position;
    offset_ += position * dims.dims[0].stride;
  }
  GPUREDUCE_HOST_DEVICE int64_t offset() const { return offset_; }
  // How many positions, this one included, the fastest dim still has.
  GPUREDUCE_HOST_DEVICE int64_t left() const { return dims_.fastest().size - inner_; }
  // Of two dims or more: how many whole fastest dims, from here on, one stride leads to.
  GPUREDUCE_HOST_DEVICE int64_t whole() const {
    return inner_ > 0 ? 0 : dims_.dims[dims_.rank - 2].size - index_[dims_.rank - 2];
  }
  // Moves on by at most left() positions.
  GPUREDUCE_HOST_DEVICE void advance(int64_t n) {
    inner_ += n;
    offset_ += n * dims_.fastest().stride;
    if (inner_ < dims_.fastest().size || dims_.rank == 1) return;
    inner_ = 0;
    offset_ -= dims_.fastest().size * dims_.fastest().stride;
    advance_whole(1);
  }
  // Moves on by at most whole() of them.
  GPUREDUCE_HOST_DEVICE void advance_whole(int64_t n) {
    for (int i = dims_.rank - 2; i >= 0; --i, n = 1) {
      offset_ += n * dims_.dims[i].stride;
      if ((index_[i] += n) < dims_.dims[i].size || i == 0) return;
      offset_ -= dims_.dims[i].size * dims_.dims[i].stride;
      index_[i] = 0;
    }
  }

 private:
  const Dims& dims_;
  int64_t offset_;
  int64_t inner_;                // the place in the fastest dim
  int64_t index_[kMaxRank + 1];  // and in the others
};

// A tile of accumulators that stays in the L1 cache, and the reduction around it. Elements are real numbers here, but for
// complex ones that are compared with zero: a complex number is two columns.
struct Plan {
  const void* input;
  int64_t length;      // elements of an output
  Dims reduced, rows;  // at least one dim each
  int64_t column_stride;
  bool negate;         // every element
  bool conjugate;      // the odd columns
  bool streams;        // more than most of a core's cache
  bool shares_stream;  // a thread's share is more than its core's cache
  int64_t tile_rows, tile_leaves, tile_width;
  bool wide;             // a row of many columns fills the tile with short leaves: four each are joined before they are written
  bool abreast;          // rows of one or two columns in short pieces: all rows of the tile take a chunk at a time
  int64_t buffer_bytes;  // for gathered elements, and behind kBufferBytes of them for PieceVectors
};

// One task: some rows and columns, and a run of their leaves, or where the order is free, of their elements.
struct Task {
  int64_t first_row, rows;
  int64_t first_column, width;
  int64_t begin, end;
};

constexpr int64_t kTileBytes = 16384;    // of accumulators in a tile
constexpr int64_t kBufferBytes = 32768;  // of gathered elements, at least
constexpr int64_t kExactDepth = 128;     // additions that no narrow integer of the kernels overflows in
constexpr int64_t kExactLanes = 64;      // of one column, which stay in registers
constexpr int64_t kPlaceBytes = 40;      // of PieceVectors, for each vector of a chunk, at most

// Writes the sums of a task's rows and columns, row by row, as accumulators. `scratch` is aligned to 64 bytes: all that is
// larger than registers lies there, as the caller's thread may have a small stack.
using Kernel = void (*)(const Plan& plan, const Task& task, void* scratch, void* sums);

// The bytes of scratch that a task of a plan takes at most.
inline int64_t scratch_bytes(const Plan& plan, int accumulator_size) {
  int levels = 2;
  for (int64_t tiles = leaf_count(plan.length) / plan.tile_leaves; tiles > 0; tiles /= 2) ++levels;
  return plan.buffer_bytes + 2 * kTileBytes + levels * plan.tile_rows * plan.tile_width * accumulator_size;
}

// The kernel for elements of `in`, or null if there is none: an instruction set each.
namespace generic {
Kernel kernel_for(DType in, Accumulator accumulator, Conversion conversion);
}
#if defined(__x86_64__)
namespace avx2 {
Kernel kernel_for(DType in, Accumulator accumulator, Conversion conversion);
}
namespace avx512 {
Kernel kernel_for(DType in, Accumulator accumulator, Conversion conversion);
}
#endif

}  // namespace gpureduce::cpu
