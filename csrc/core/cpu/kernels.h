// The kernels of each instruction set, which carry out the tasks of a plan. No torch, no std: kernels.inl says why.
#pragma once

#include <utility>

#include "../problem/rows.h"
#include "plan.h"

namespace gpureduce::cpu {

constexpr int64_t kExactDepth = 128;  // additions in which no narrow integer of the kernels overflows

// Writes the sums of a task's rows and columns, row by row, as accumulators. `scratch` is aligned to 64 bytes. It holds all
// larger data, since the caller's thread may have a small stack.
using Kernel = void (*)(const Plan& plan, const Task& task, void* scratch, void* sums);

// The sum of n elements of a chunk, for each of one or two interleaved columns. `scratch` has room for kChunk numbers.
template <class T>
using ChunkSum = void (*)(const T* x, int64_t n, int64_t width, T* scratch, T* sums);

// to[i] = e^(x[i] - m[i * step]), or 0 where that would be subnormal.
template <class T>
using Exponentials = void (*)(const T* x, const T* m, int64_t step, int64_t n, T* to);

constexpr int kExactLevels = 7;                // enough for all float32 numbers
constexpr int kNotFinite = -1, kTooWide = -2;  // why there are no such doubles

// How a block of elements was summed to doubles without rounding: `levels` doubles for each output, or a reason why there are
// none. All magnitudes are at most 2^top, and multiples of 2^unit.
struct ExactParts { int levels, top, unit; };

// Writes the doubles of n elements, at most kChunk. The last one is -0 if all elements are.
using ExactRow = ExactParts (*)(const void* x, int64_t n, double* sums);

// The same for rows of n elements, which begin `pitch` apart; the rows' first doubles come first.
template <class T>
using ExactRows = ExactParts (*)(const T* x, int64_t pitch, int64_t rows, int64_t n, double* sums);

// The same for each of `width` neighbouring columns. `copy` has room for all elements, and `sums` for kExactLevels doubles of
// at least kExactWidth columns.
template <class T>
using ExactColumns = ExactParts (*)(const T* x, int64_t pitch, int64_t rows, int64_t width, T* copy, double* sums);
constexpr int64_t kExactWidth = 128;

// to[i] = x[i * stride] as the problem maps it, where T holds its elements exactly.
template <class T>
using Convert = void (*)(const CpuProblem& problem, const void* x, int64_t n, int64_t stride, T* to);

// Replaces factors x and y, in `rows` rows of n which begin `pitch` apart, by their products rounded to doubles and by what the
// rounding left, which is -0 instead of 0. Returns false, and changes nothing, if two doubles are not enough.
using ExactProducts = bool (*)(double* x, double* y, int64_t pitch, int64_t rows, int64_t n);

template <class T>
struct ExactKernels {
  ExactRow row;
  ExactRows<T> rows;
  ExactColumns<T> columns;
  Convert<T> convert;
};

// Rows from `begin` to `end` (exclusive) of a call, or columns of its weights. `scratch` has kRowBytes, aligned to 64 bytes.
template <class Call>
using RowKernel = void (*)(const Call& call, int64_t begin, int64_t end, void* scratch);
constexpr int kRowLevels = 48;         // of the tree above chunks
constexpr int64_t kRowColumns = 1024;  // most columns whose sums are joined together
constexpr int64_t kRowBytes = 1 << 18;

struct InstructionSet {
  const char* name;
  int vector_bytes;
  Kernel (*kernel_for)(DType in, Accumulator accumulator, Map map);  // null if there is none
  ChunkSum<float> sum_floats;
  ChunkSum<double> sum_doubles;
  Exponentials<float> exponentials_of_floats;
  Exponentials<double> exponentials_of_doubles;
  ExactKernels<float> exact_floats;
  ExactKernels<double> exact_doubles;
  ExactRow exact_row_of_halves, exact_row_of_bfloats;  // null if they are converted first
  ExactProducts exact_products;                        // null if there are no fused multiply-adds
  RowKernel<RowsCall> rows;
  RowKernel<RowStepCall> row_step;
  RowKernel<RowWeightsCall> row_weights;  // of columns
};

namespace generic {
InstructionSet functions();
}
#if defined(__x86_64__)
namespace avx2 {
InstructionSet functions();
}
namespace avx512 {
InstructionSet functions();
}
#endif

// The best one that the processor has and torch uses: ATEN_CPU_CAPABILITY=default|avx2|avx512 limits both.
const InstructionSet& instruction_set();

}  // namespace gpureduce::cpu
