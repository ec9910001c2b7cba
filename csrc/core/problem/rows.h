// A call of a function that keeps its input's shape, as backends see it. Pure C++: no torch, no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../numeric/row_loss.h"
#include "../numeric/row_steps.h"
#include "nest.h"

namespace gpureduce {

// What a call reads and writes per element: the input, the incoming gradient, weight, bias and the result.
enum RowOperandName { kRowX, kRowG, kRowWeight, kRowBias, kRowY, kRowOperands };

struct RowOperand {
  char* data;  // null: there is none
  DType dtype;
};

// A dim, with the strides of all operands in bytes.
struct RowDim {
  int64_t size;
  int64_t strides[kRowOperands];
};

struct RowDims {
  int rank = 0;
  RowDim dims[kMaxRank];

  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= dims[d].size;
    return n;
  }
  // Adds a dim that is faster than the others. One that all operands walk on in the last dim's steps becomes a part of it.
  // Returns false if there is no room.
  bool add(const RowDim& dim) {
    if (dim.size == 1) return true;
    if (rank > 0) {
      RowDim& last = dims[rank - 1];
      bool one = true;
      for (int o = 0; o < kRowOperands; ++o) one &= last.strides[o] == dim.size * dim.strides[o];
      if (one) {
        const int64_t size = last.size * dim.size;
        last = dim;
        last.size = size;
        return true;
      }
    }
    if (rank == kMaxRank) return false;
    dims[rank++] = dim;
    return true;
  }
  GPUREDUCE_HOST_DEVICE int64_t offset(RowOperandName operand, int64_t index) const {
    return rank > 1 ? nested_offset(operand, index) : rank > 0 ? index * dims[0].strides[operand] : 0;
  }

 private:
  // Out of line: kernels ask for many offsets, and divisions are long.
  GPUREDUCE_OUT_OF_LINE int64_t nested_offset(RowOperandName operand, int64_t index) const {
    int64_t offset = 0;
    GPUREDUCE_SHORT_CODE
    for (int d = rank - 1; d > 0; --d) {
      offset += index % dims[d].size * dims[d].strides[operand];
      index /= dims[d].size;
    }
    return offset + index * dims[0].strides[operand];
  }
};

// Rows have their elements in `across` and lie in `along`, in logical order. Weight and bias have the stride 0 along the rows.
struct RowsCall {
  RowFunction function;
  bool wide;  // computed in float64, otherwise in float32
  RowOperand operands[kRowOperands];
  RowDims along, across;
  int64_t rows, length;
  double eps = 0;
  // Per row, in logical order, of float64 if the call is wide and otherwise of float32: written by forward passes of norms and
  // by log_sum (m and log(S)), read by backward passes. Null: not wanted, or none.
  void *mean = nullptr, *r = nullptr;
  // Of log_sum: S per row, like m and log(S). Null: not wanted.
  void* sum = nullptr;
  RowLoss loss = {};  // of log_sum, quotient and log_prob_backward; a step reads its targets
};

// The gradients of weight and bias: sums over all rows. The results are contiguous, in the logical order of the row's elements,
// of any floating dtype. Of `call` all but y, weight and bias is read; `across` is in logical order.
struct RowWeightsCall {
  RowsCall call;
  RowOperand weight, bias;  // null: not wanted
};

// One step of a function, on parts of rows whose numbers are known. y is what the step makes of an element.
struct RowStepCall {
  RowsCall call;
  RowStep step;
  const void *first_share = nullptr, *share = nullptr;  // per row, of the dtype of mean and r; null counts as 0
};

// The numbers of rows whose sums are known: contiguous, of float64 if it is wide and otherwise of float32.
struct RowFinishCall {
  RowFunction function;
  bool wide;
  int64_t rows, length;
  double eps;
  const void *sum, *other;  // see row_numbers
  void *first, *second;     // mean and r; of a backward pass the shares
};

}  // namespace gpureduce
