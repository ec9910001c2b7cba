// Which kernels take functions that keep their input's shape, and the gradients of their weights; and how these cut the work.
// Pure C++.
#pragma once

#include <algorithm>
#include <string>

#include "../api.h"
#include "../problem/quantize.h"
#include "gpu.h"
#include "plan.h"

namespace gpureduce::cuda {

// --- rows -------------------------------------------------------------------------------------------------------------------

// Threads of a block whose warps take whole rows, and the most of one that takes a part of a row and shares its multiprocessor
// with blocks of other rows: while one of them computes, another one loads.
constexpr int kFewRowThreads = 128;
constexpr int kAnyRowThreads = 512;  // of a row of any dtype and strides, at most

// Threads per block at most: what its registers allow, where each thread holds 8 vectors per input. size: of an element.
constexpr int most_row_threads(RowFunction f, int size) { return takes_grad(f) || size == 2 ? 512 : 1024; }

// Which kernel takes rows, by their length.
// warp     a row has a warp at most
// pairs    two chunks' lanes are four groups of a warp at most, two vectors each
// quads    the same of two groups, four vectors each
// chunks   eight vectors of each lane
// rounds   registers do not hold the row, so that it is read again for each step
// any      any dtype and strides: no kernel is compiled for the call
enum class RowsKernel : uint8_t { warp, pairs, quads, chunks, rounds, any };

// What is compiled into a kernel: a thread's groups of lanes, its vectors of each, and the most rows that it takes part in at
// once. size: of an element.
struct RowsTile { int groups, depth, rows; };
constexpr RowsTile rows_tile(RowsKernel kernel, RowFunction f, int size) {
  const int warps = kLanes * size / kGranule / kWarp, groups = warps < 4 ? warps : 4;
  const int at_once = takes_grad(f) ? 4 : 8;  // vectors
  switch (kernel) {
    case RowsKernel::warp: return {1, 1, at_once / 2};
    case RowsKernel::pairs: return {groups, 2, at_once / 2 < groups ? 1 : at_once / 2 / groups};
    case RowsKernel::quads: return {2, 4, 1};
    default: return {1, kDepth, 1};
  }
}

struct RowsPlan {
  RowsKernel kernel;
  bool vectors = false;                   // rows are whole vectors at aligned addresses
  int threads = 1;                        // per row and block: a power of two
  int cluster = 1;                        // blocks per row
  int rounds = 1;                         // of a block's threads over its part of a row
  int in_flight = 1;                      // rows that a thread takes part in at once
  int block_rows = 1;                     // side by side
  bool x_moved = false, g_moved = false;  // their vectors are not at the places of the results'
  bool streams = false;                   // the L2 evicts what is read first
  int64_t blocks = 0;                     // of a kernel that takes anything, too many for a grid are refused

  bool is_compiled() const { return kernel != RowsKernel::any; }
  int block_threads() const { return block_rows * threads; }
  Grid grid() const { return {static_cast<uint32_t>(blocks), 1, 1, static_cast<uint32_t>(cluster)}; }
  GPUREDUCE_API std::string str(const RowsCall& call) const;
};

GPUREDUCE_API RowsPlan plan_rows(const RowsCall& call, const Device& device);

// A call in words, with the numbers that its plan depends on.
GPUREDUCE_API std::string text_of(const RowsCall& call);

// The dtype of the results, or the elements' if there are none.
inline DType result_dtype(const RowsCall& call) { return call.operands[call.operands[kRowY].data ? kRowY : kRowX].dtype; }

// Whether an operand's rows have their elements side by side.
bool is_contiguous(const RowsCall& call, RowOperandName name);
// The memory that an operand takes up.
InputSpan span_of(const RowsCall& call, RowOperandName name);

// --- rows that are rounded to float8 ----------------------------------------------------------------------------------------

constexpr int64_t kMostQuantized = 16384;  // elements of a row, which registers hold

// A thread's vectors of a row. Norms add in lanes, which are 512 apart.
constexpr int quantize_depth(bool norm) { return norm ? kDepth : 4; }

struct QuantizePlan {
  int threads = 0;  // per row: a power of two; 0: the kernel does not take the call
  int block_rows = 1;
  int64_t blocks = 0;
  bool streams = false;

  int block_threads() const { return block_rows * threads; }
  GPUREDUCE_API std::string str(const QuantizeCall& call) const;
};

GPUREDUCE_API QuantizePlan plan_quantize(const QuantizeCall& call, const Device& device);
GPUREDUCE_API std::string text_of(const QuantizeCall& call);

// --- steps and numbers ------------------------------------------------------------------------------------------------------

constexpr int kStepThreads = 256;

// A step's grid, of an element per thread; or of a row per thread. A block takes more if there are many.
inline Grid plan_steps(int64_t count) {
  return {static_cast<uint32_t>(std::min<int64_t>(ceil_div(count, kStepThreads), 65536))};
}
GPUREDUCE_API std::string explain_steps(const char* name, int64_t count);

// --- gradients of weights ---------------------------------------------------------------------------------------------------

constexpr int kWeightColumns = 32, kWeightGroups = 8;    // threads of a block: columns, and groups that share them
constexpr int kGroupLanes = 4;                           // lanes of rows that a thread joins
constexpr int kUnitLanes = kGroupLanes * kWeightGroups;  // and a block
constexpr int kJoinThreads = 1024, kJoinBatch = 8;       // of a block, and partial sums that a thread loads at once
constexpr int kWeightVector = 4;                         // columns of a thread, of compiled dtypes

// How a thread loads V neighbours of a row.
// whole   rows are whole vectors at aligned addresses
// around  in two aligned vectors, which may reach into the rows before and after, but stay in the memory of all rows
// each    element by element
enum class RowLoads : uint8_t { whole, around, each };

// The join of partial sums: `count` rows of `pitch` sums.
struct WeightsJoin {
  int64_t pitch, count;
  int side = 0, runs = 0;  // threads of a block: columns, and runs of rows
  int64_t run = 1;         // rows of a run: a power of two
  int64_t blocks = 0;
};

// The gradients of weights in a kernel of their own.
struct WeightsPlan {
  RowLoads loads = RowLoads::each;
  bool typed = false;                    // x and g have the call's dtype, side by side
  int64_t column_blocks = 0, units = 0;  // units: runs of kUnitLanes lanes, each with a row of partial sums
  bool streams = false;
};

constexpr int kNormThreads = 512, kMostNormGroups = kNormThreads / kWarp, kMostNormStages = 8;
constexpr int kNormStaticBytes = 2048;  // at least the kernel's static shared memory

// Blocks that share a multiprocessor, where a thread has so many elements.
constexpr int norm_blocks(int elements) { return elements > 4 ? 1 : 2; }

// The gradients of a norm's input and weights in one kernel, and how a block of it takes rows (rows/norm_backward.cuh).
struct NormPlan {
  int vector = 0,
      depth = 0;    // neighbouring elements of a thread, and how many of these, 512 apart; 0: the kernel does not take it
  int threads = 0;  // of a group, which takes a row at a time
  int groups = 0;   // of a block: neighbouring lanes of rows
  int stages = 0;   // rows of a group in shared memory
  int shared_bytes = 0;
  int64_t units = 0;  // runs of `groups` lanes: each has a row of partial sums
  int64_t blocks = 0;
  bool streams = false;
};

struct RowWeightsPlan {
  NormPlan norm;
  WeightsPlan weights;  // unless the norm's kernel takes the call
  WeightsJoin join;
  int64_t workspace_bytes = 0;  // for partial sums

  bool is_one_kernel() const { return norm.depth > 0; }
  GPUREDUCE_API std::string str(const RowWeightsCall& weights) const;
};

// The gradients of weights; and of the input if it is wanted, whose call is `input`, with the same operands. That call has a
// plan of its own, unless one kernel takes both.
GPUREDUCE_API RowWeightsPlan plan_weights(const RowsCall* input, const RowWeightsCall& weights, const Device& device);

}  // namespace gpureduce::cuda
