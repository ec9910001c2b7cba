// A reduction as the CPU sees it: rows and columns of real numbers. No torch, no std: the kernels include this (kernels.inl).
#pragma once

#include "../problem/geometry.h"

namespace gpureduce::cpu {

struct Dims {
  int rank = 0;
  ReducedDim dims[kMaxRank + 1];

  GPUREDUCE_HOST_DEVICE const ReducedDim& fastest() const { return dims[rank - 1]; }
};

// A position in dims, and its offset in elements.
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
  // The positions left in the fastest dim, this one included.
  GPUREDUCE_HOST_DEVICE int64_t left() const { return dims_.fastest().size - inner_; }
  // For two or more dims: how many whole runs of the fastest dim follow from here with one stride.
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
  // Moves on by at most whole() runs of the fastest dim.
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

// If a kept dim is the fastest in memory, its outputs are **columns**, which a tile holds side by side; all other kept dims are
// **rows**. A reduction along the fastest dim in memory has one column. In sums a complex number is two columns, or only its
// real part if the result is real; under other maps it stays complex.
struct CpuProblem {
  const void* input;
  DType in, out;
  Accumulator accumulator;
  Map map;
  bool negate;     // negates every element
  bool conjugate;  // negates the odd columns
  int64_t length;  // elements of an output
  int64_t row_count, columns;
  int64_t column_stride, column_second;
  Dims reduced, rows;  // of the inputs, at least one dim each
  Dims results;        // of the outputs, row by row

  int64_t outputs() const { return row_count * columns; }
  void swap_places();  // the second input's strides become the first one's
  // Integer sums and products modulo 2^64, and maxima, have the same bits in any order.
  bool is_order_free() const {
    switch (accumulator) {
      case Accumulator::i64:
      case Accumulator::largest_f32:
      case Accumulator::largest_f64:
      case Accumulator::largest_i64:
      case Accumulator::product_i64: return true;
      default: return false;
    }
  }
  // True if accumulators are joined by something else than addition.
  bool is_joined() const { return accumulator >= Accumulator::largest_f32; }
  // True if sum kernels cannot take elements as they are: for another map than value and nonzero, or another join than
  // addition.
  bool is_mapped() const { return is_joined() || (map != Map::value && map != Map::nonzero); }
};

CpuProblem make_cpu_problem(const Reduction& r);

}  // namespace gpureduce::cpu
