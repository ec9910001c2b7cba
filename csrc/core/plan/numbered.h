// How kernels of tables whose rows are chosen by number cut their work. Pure C++.
#pragma once

#include <cstdint>
#include <string>

#include "../api.h"
#include "../numeric/apply.h"
#include "limits.h"

namespace gpureduce::cuda {

constexpr int kNumberedThreads = 256, kNumberedAtOnce = 4;  // per block; units per thread, whose loads are in flight together
constexpr int kNumberedUnits = kNumberedThreads * kNumberedAtOnce;
constexpr int64_t kMostNumbered = (int64_t{1} << 31) - kNumberedUnits;  // units of a launch

// Row i of the result is row numbers[i] of `from`; there are `entries` of them, in each of `outer` tables that lie side by
// side. If `zeros`, negative numbers give rows of zeros. Sizes and strides are in bytes; neighbours in a row are contiguous.
struct CopiedRows {
  const char* from;
  char* to;
  const void* numbers;
  bool wide, zeros;  // wide: numbers are int64
  int64_t entries, rows, outer, row_bytes, from_stride, to_stride, from_outer, to_outer;

  GPUREDUCE_API std::string str() const;  // what is launched
};

// The bytes of a word that a thread copies at once: all rows begin and end at multiples of it.
GPUREDUCE_API int word_of(const CopiedRows& call);

// True if a launch has units for all words of an entry.
inline bool takes(const CopiedRows& call) { return call.outer * (call.row_bytes / word_of(call)) <= kMostNumbered; }

// A formula of elements x and of what their segments have: contiguous x of sizes (outer, entries, inner), contiguous float32
// tables g and r of sizes (outer, count, inner), with a count of at least 1. The number of an entry's segment chooses a row of
// the tables. Entries outside of all segments have the number -1, and give 0. Of softmax_backward, g is no table but lies like
// x, with x's dtype.
struct NumberedApply {
  Formula formula;
  const void* x;
  DType in;
  void* y;
  DType out;
  const void *g, *r;
  const void* offsets;  // of the segments: count + 1 contiguous int64 or int32
  bool wide;            // offsets are int64
  const int32_t* numbers;
  int64_t outer, entries, inner, count;

  GPUREDUCE_API std::string str() const;  // what is launched
};

// The formulas with kernels.
constexpr bool has_numbered(Formula f) { return f == Formula::softmax || f == Formula::softmax_backward; }

// True if a kernel takes the call, whatever its pointers are. There are kernels for float32, float16 and bfloat16, with results
// of the same dtype or of float32, and fewer than 2^31 elements of x and of each table.
GPUREDUCE_API bool takes(const NumberedApply& call);

// True if the kernel finds the entries' numbers itself, and does not read `numbers`. It does so for one column, which
// saves a third of the bytes. For several columns it would save little.
GPUREDUCE_API bool takes_offsets(const NumberedApply& call);

// What is launched for the numbers of `entries` entries.
GPUREDUCE_API std::string explain_numbers(int64_t entries);

// Units per thread of a formula, of V elements each, whose loads are in flight together.
constexpr int applied_units(int V) { return V > 4 ? 2 : 4; }

// The elements of a unit: neighbours in a row, or each a row of its own.
GPUREDUCE_API int elements_of_unit(const NumberedApply& call);

}  // namespace gpureduce::cuda
