// Formulas on a GPU. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../api.h"
#include "../numeric/apply.h"
#include "../problem/nest.h"

namespace gpureduce::cuda {

// Operands are the result, the elements, and g, r and m. `data` is null for one that is missing. Strides are in bytes, slowest
// dim first.
struct Apply {
  Formula formula;
  bool wide;  // computes in float64
  double number;
  int rank;
  uint32_t count;  // elements; this and all byte offsets are below 2^31
  int64_t sizes[kMaxRank];
  struct Operand {
    char* data;
    DType dtype;
    int32_t strides[kMaxRank];
  } operands[2 + kOthers];
  int multiprocessors;
};

GPUREDUCE_API cudaError_t apply(const Apply& call, cudaStream_t stream);

}  // namespace gpureduce::cuda
