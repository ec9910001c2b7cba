// What the kernels of tiles of segments (places.cuh) share.
#pragma once

#include "../core/cuda/args.cuh"
#include "../core/plan/segments.h"
#include "places.cuh"

namespace gpureduce::cuda {

constexpr int kJoinLevels = 32;  // levels of the tree above a thread's runs of partial sums

// The index of a chunk's sum in the workspace, if its segment has several chunks. A segment's last chunk may begin near the
// next segment's first one, so it has an odd index.
__device__ __forceinline__ int64_t chunk_slot(int64_t begin, int64_t chunk, int64_t length) {
  return 2 * (begin / kChunk + chunk) + (chunk == chunks_of(length) - 1);
}

// Writes results.
template <class Acc>
struct SegmentOutput {
  void* result;
  DType dtype;
  Finish finish;

  // Writes the sums of V neighbouring columns, of `count` elements each. kAnyDtype: results may have any dtype.
  template <bool kAnyDtype, int V>
  __device__ __forceinline__ void write(int64_t index, int64_t count, Acc (&v)[V]) const {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (count == 0) v[j] = of_none<Acc>(dtype);  // the accumulator is padding
      if constexpr (kAnyDtype) {
        store_any(result, index + j, dtype, finish, count, v[j]);
      } else if constexpr (IsLargest<Acc>::value) {
        if (finish != Finish::none) v[j] = opposite(v[j]);
      } else if constexpr (!std::is_integral_v<Acc>) {
        if (finish != Finish::none) v[j] = quotient(v[j], count);
      }
    }
    if constexpr (!kAnyDtype) {
      Number<Acc> x[V];
#pragma unroll
      for (int j = 0; j < V; ++j) x[j] = number(v[j]);
      store_native(result, index, 1, dtype, x);
    }
  }
};

}  // namespace gpureduce::cuda
