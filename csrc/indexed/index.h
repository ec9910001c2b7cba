// Sorting by index on a GPU: raw pointers and a stream in, an error code out. Nothing waits, and CUDA graphs can capture it.
// An index out of range fails a device-side assertion, and nothing outside of the tensors is accessed.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/problem/index.h"

namespace gpureduce::cuda {

// Keys have 32 bits, and so have positions, with a sign.
inline bool can_sort(const Index& index) { return index.count < int64_t{1} << 31 && index.size <= int64_t{1} << 32; }

// The bytes of sort_by_index()'s workspace.
GPUREDUCE_API cudaError_t workspace_of(const Index& index, size_t& bytes);

// Sorts entries that can_sort() takes; there are some, and outputs. The sort goes back and forth between sort.sorted and
// `spare`, a second buffer of its size; in_spare tells where the result is.
GPUREDUCE_API cudaError_t sort_by_index(const IndexSort& sort, void* spare, void* workspace, size_t bytes, bool& in_spare,
                                        cudaStream_t stream);

// Writes the value at each entry's index: `order` has a position in `values` per entry.
GPUREDUCE_API cudaError_t gather_by_order(const Index& order, const IndexValues& values, float* out, cudaStream_t stream);

}  // namespace gpureduce::cuda
