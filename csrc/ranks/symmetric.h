// Sums over ranks whose GPUs write into each other's memory. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../core/api.h"
#include "../core/numeric/dtypes.h"

namespace gpureduce::cuda {

constexpr int kMostPeers = 8, kMostBlocks = 256;
constexpr int kMostGathered = 4096;  // bytes of a rank that one gathering takes

// What each rank lends all others to write into: symmetric_bytes() bytes of its GPU's memory, all 0 before the first call.
// Calls that use the same memory run one after the other, and in the same order on all ranks.
struct Peers {
  char* memory[kMostPeers];  // by rank, this rank's own too
  int ranks, rank;
  int blocks;        // at most so many, the same on all ranks: at least as many must run at once on each of their GPUs
  int64_t patience;  // nanoseconds that a rank waits for another one; then a device-side assertion fails
};
GPUREDUCE_API int64_t symmetric_bytes(int ranks);

// The blocks of a call: half of those that run at once on the current device. So the calls of two groups can wait beside each
// other, whichever begins first on each rank.
GPUREDUCE_API cudaError_t symmetric_blocks(int ranks, int& blocks);

// How the ranks add. all: each rank gets all elements of the others, and adds all. shared: each rank adds one part, and gives
// it to the others. scattered: each rank adds its own piece.
enum class Adding : uint8_t { all, shared, scattered };

// True if there is a kernel for a dtype.
GPUREDUCE_API bool adds_ranks(DType t);

// Adds the ranks' elements pairwise in rank order, divides by the number of ranks if it averages, and rounds once. `in` and
// `out` have `count` elements, and may be the same; if scattered, `in` has as many for each rank.
GPUREDUCE_API cudaError_t add_ranks(Adding adding, DType t, bool averages, const void* in, void* out, int64_t count,
                                    const Peers& peers, cudaStream_t stream);

// The rms_norm of rows of a sum over ranks, side by side. With a residual, of the dtype of the elements or float32, it is added
// first, and the sum is written in its dtype.
struct SummedNorm {
  const void* in;
  const void* residual;  // or null
  const void* weight;    // of a row's elements, of their dtype or float32; or null
  bool wide_residual, wide_weight;
  void *out, *sum;
  int64_t rows;
  int length;
  double eps;
};
constexpr int kMostNormed = 8192;  // elements of a row

// True if a kernel takes rows of a dtype and length.
GPUREDUCE_API bool adds_norms(DType t, int64_t length, int ranks);
GPUREDUCE_API cudaError_t add_ranks_norm(DType t, const SummedNorm& call, const Peers& peers, cudaStream_t stream);

// Writes the ranks' messages of `bytes` bytes to `out`, one after the other.
GPUREDUCE_API cudaError_t gather_ranks(const void* mine, void* out, int bytes, const Peers& peers, cudaStream_t stream);

}  // namespace gpureduce::cuda
