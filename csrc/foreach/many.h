// Reductions of many arrays in one launch: each array is reduced to one number, in the contract's order. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/cuda/launch.h"
#include "../core/problem/geometry.h"

namespace gpureduce::cuda {

constexpr int kMostArrays = 1024;  // per launch, limited by the room for parameters

// Contiguous elements.
struct Array {
  const void* data;
  int64_t length;
};

// Arrays of one dtype, and where their results go.
struct Many {
  const Array* arrays;
  int count;  // up to kMostArrays
  DType in, out;
  Map map;
  void* results;  // contiguous
  int multiprocessors;
  int64_t l2_bytes;
  Queue queue;
};

// True if there are kernels for these dtypes and this map.
GPUREDUCE_API bool takes_many(DType in, DType out, Map map);

// Bytes of partial results.
GPUREDUCE_API int64_t workspace_of(const Many& many);

GPUREDUCE_API cudaError_t run_many(const Many& many, void* workspace);

}  // namespace gpureduce::cuda
