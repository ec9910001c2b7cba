// Tables whose rows are chosen by number: gathers, and formulas of elements and their segment's results. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/numeric/apply.h"
#include "../core/problem/segment.h"

namespace gpureduce::cuda {

// Row i of the result is row numbers[i] of `from`; there are `entries` of them, in each of `outer` tables that lie side by
// side. If `zeros`, negative numbers give rows of zeros. Sizes and strides are in bytes; neighbours in a row are contiguous.
struct CopiedRows {
  const char* from;
  char* to;
  const void* numbers;
  bool wide, zeros;  // wide: numbers are int64
  int64_t entries, rows, outer, row_bytes, from_stride, to_stride, from_outer, to_outer;
};

// If another number is not in [0, rows), the kernel stops with an assertion. Returns cudaErrorNotSupported if there are too
// many bytes for its grid.
GPUREDUCE_API cudaError_t copy_rows(const CopiedRows& call, cudaStream_t stream);

// Writes to which segment each of `entries` entries belongs, or -1 if to none. int32, so that there are fewer than 2^31
// segments.
GPUREDUCE_API cudaError_t number_entries(const void* offsets, bool wide, int64_t count, int64_t entries, int32_t* numbers,
                                         cudaStream_t stream);

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
};

// The formulas with kernels.
constexpr bool has_numbered(Formula f) { return f == Formula::softmax || f == Formula::softmax_backward; }

// True if a kernel takes the call, whatever its pointers are. There are kernels for float32, float16 and bfloat16, with results
// of the same dtype or of float32, and fewer than 2^31 elements of x and of each table.
GPUREDUCE_API bool takes(const NumberedApply& call);

// True if the kernel finds the entries' numbers itself, and does not read `numbers`. It does so for one column, which
// saves a third of the bytes. For several columns it would save little.
GPUREDUCE_API bool takes_offsets(const NumberedApply& call);

// For calls that a kernel takes().
GPUREDUCE_API cudaError_t apply_numbered(const NumberedApply& call, cudaStream_t stream);

}  // namespace gpureduce::cuda
