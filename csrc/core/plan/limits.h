// Limits that planners and kernels share, and how kernels find elements. Constants of one kernel stand in plan/<kernel>.h. Pure
// C++.
#pragma once

#include <cstdint>

#include "../order.h"

namespace gpureduce {

// The most blocks of a grid along x, and along y and z.
constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1, kMaxGridDepth = 65535;

constexpr int kWarp = 32;
constexpr int kLoads = 8;           // vector loads a thread keeps in flight: a full leaf's depth
constexpr int kGranule = 16;        // bytes of the widest load; bulk copies begin and end at multiples of it
constexpr int kLine = 128;          // bytes of a cache line
constexpr int kMaxRowWarps = 16;    // most warps per block in kernels of rows
constexpr int kMaxColumnWarps = 8;  // and in kernels of columns
constexpr int kMaxCluster = 8;      // most blocks of a cluster, on any device of capability 9.0 and later
constexpr int kJoinRun = 8;         // partial sums per thread of the join kernel
constexpr int kMaxJoin = 8192;      // and per block of 1024 threads
static_assert(kLoads == kDepth);

// How a kernel finds the elements of an output.
// dense    side by side
// linear   one stride apart
// nested   in nested dims
// shifted  misaligned rows or columns: in the aligned vectors that hold them (cuda/load/shifted.cuh)
// spread   misaligned columns: a thread reads as many as a vector has, one by one, apart from each other
// deep     in more than two nested dims: the walk of kernels of rows, whose plans have the walk nested
enum class Walk : uint8_t { dense, linear, nested, shifted, spread, deep };

// shifts(): true if misaligned rows and columns of elements of this size are read in shifted vectors. spreads(): true if
// misaligned columns are read spread. Single elements of other sizes are as fast.
GPUREDUCE_HOST_DEVICE constexpr bool shifts(int size) { return size < 4; }
GPUREDUCE_HOST_DEVICE constexpr bool spreads(int size) { return size == 4 || size == 8; }

GPUREDUCE_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// log2 of the least power of two that is not below `n`.
template <class Int>
GPUREDUCE_HOST_DEVICE int log2_up(Int n) {
#ifdef __CUDA_ARCH__
  return n < 2 ? 0 : sizeof(Int) > 4 ? 64 - __clzll(n - 1) : 32 - __clz(n - 1);
#else
  return n < 2 ? 0 : 64 - __builtin_clzll(n - 1);
#endif
}

}  // namespace gpureduce
