// The order of additions, version 1: a permanent contract (docs/order.md). Its constants are defined only here.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GPUREDUCE_HOST_DEVICE __host__ __device__ __forceinline__
#define GPUREDUCE_OUT_OF_LINE __host__ __device__ __noinline__
#define GPUREDUCE_SHORT_CODE _Pragma("unroll 1")  // before a loop
#else
// Always inline, so that no copy for one instruction set serves another.
#define GPUREDUCE_HOST_DEVICE inline __attribute__((always_inline))
#define GPUREDUCE_OUT_OF_LINE __attribute__((always_inline))
#define GPUREDUCE_SHORT_CODE
#endif

namespace gpureduce {

constexpr int kOrderVersion = 1;
constexpr int kLanes = 512;  // lane l of a chunk adds elements l, l + 512, l + 1024, ... left to right
constexpr int kDepth = 8;    // elements a lane adds in a full chunk
constexpr int kChunk = kLanes * kDepth;

// A **leaf** is one lane's sum. The leaves of an output form one sequence, chunk by chunk, and nearest neighbours are joined
// first. So every aligned power-of-two run of leaves is a sub-tree, which any thread, warp or block may compute.
GPUREDUCE_HOST_DEVICE int64_t leaf_count(int64_t length) {
  int64_t tail = length % kChunk;
  return length / kChunk * kLanes + (tail < kLanes ? tail : kLanes);
}

// The first element of a leaf; its other elements follow in steps of kLanes.
template <class Index>
GPUREDUCE_HOST_DEVICE Index leaf_start(Index leaf) {
  return leaf / kLanes * kChunk + leaf % kLanes;
}

}  // namespace gpureduce
