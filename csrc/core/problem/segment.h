// Segments: runs of neighbouring entries along one dim, delimited by a tensor of offsets. An entry is a row of that dim: its
// own, or one that a list names. Pure C++.
#pragma once

#include <algorithm>

#include "geometry.h"
#include "index.h"

namespace gpureduce {

// Entries that are rows in any order: entry i is row number(i) of the dim. With weights it counts as the product of both,
// rounded once to the accumulator's type; the weights are of that type.
struct Gather {
  const void* numbers = nullptr;  // contiguous int64 or int32, one per entry; null if entry i is row i
  bool wide = false;              // numbers are int64
  int64_t rows = 0;               // of the dim
  const void* weights = nullptr;  // contiguous; null if there are none
  bool by_row = false;            // weights are numbered as rows are, not as entries

  // Numbers must be in host memory. The row is one that exists, whatever became of a number since it was checked.
  int64_t number(int64_t i) const { return integer_at(numbers, wide, i); }
  int64_t row(int64_t i) const { return std::clamp<int64_t>(number(i), 0, rows - 1); }
};

struct Segments {
  // Of the whole dim; `output` is the first segment's. Of exponentials, the largest elements lie as the results do.
  Reduction reduction;
  const void* offsets;  // count + 1 contiguous int64 or int32; null if each entry is a segment
  bool wide;            // offsets are int64
  int64_t count;
  int64_t length;        // entries
  int64_t stride;        // of the dim
  int64_t result_pitch;  // from one segment's result to the next one's
  Gather gather = {};

  // Offsets must be in host memory. Backends of the CPU read them often, so that nobody else may be able to change them.
  int64_t offset(int64_t i) const { return offsets ? integer_at(offsets, wide, i) : i; }
};

}  // namespace gpureduce
