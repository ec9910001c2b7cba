// Formulas on a GPU. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../numeric/apply.h"
#include "../problem/nest.h"

namespace gpureduce::cuda {

// The result, the elements, and g, r and m: of those that are missing `data` is null. Strides are in bytes, slowest dim first.
struct Apply {
  Formula formula;
  bool wide;  // in float64
  double number;
  int rank;
  uint32_t count;  // elements: below 2^31, and all offsets in bytes too
  int64_t sizes[kMaxRank];
  struct Operand {
    char* data;
    DType dtype;
    int32_t strides[kMaxRank];
  } operands[2 + kOthers];
  int multiprocessors;
};

cudaError_t apply(const Apply& call, cudaStream_t stream);

}  // namespace gpureduce::cuda
