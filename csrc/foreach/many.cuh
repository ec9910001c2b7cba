// Many arrays in one launch, one output each. A block takes a tile of one array's chunks, and its warps take the tile's units
// as in the dense kernel (core/cuda/kernels/dense.cuh). A second kernel joins each array's partial results. The idea of one
// launch for arrays of any number and size is NVIDIA Apex's multi_tensor_apply.
//
// For example the sums of squares of two float32 arrays of 5000 and 100 elements, with tiles of one chunk. Block 0 takes
// elements 0-4095 of the first array: 4 units of 128 leaves, one for each of warps 0-3. Thread 0 of warp 0 loads elements 0-3,
// 512-515, ..., 3584-3587 and adds their squares as lanes 0-3. Warp 0 joins the sums of the 4 units, and thread 0 writes
// partial result 0. Block 1 does the same with elements 4096-4999, and block 2 with the second array. In the second kernel
// block 0 joins partial results 0 and 1 and writes the first array's result, and block 1 writes the second array's.
#pragma once

#include "../core/cuda/kernels/dense.cuh"
#include "many.h"

namespace gpureduce::cuda {

constexpr int kMostJoined = 64;  // most runs of kJoinRun partial results per thread: a power of two

// The tiles of each array, and where its result goes. kCapacity: room for arrays, since a launch takes longer with larger
// parameters.
template <class Acc, int kCapacity>
struct ManyTiles {
  uint32_t first[kCapacity + 1];  // the first tile of each array
  int32_t count;                  // arrays
  DType out;
  Acc* partials;  // null: every array is one tile
  void* results;

  // The array of a tile.
  __device__ __forceinline__ int array_of(uint32_t tile) const {
    int low = 0, high = count;  // first[low] <= tile < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= tile) low = middle;
      else high = middle;
    }
    return low;
  }
};

template <class Acc, int kCapacity>
struct ManyArgs {
  ManyTiles<Acc, kCapacity> tiles;
  const void* data[kCapacity];
  int64_t length[kCapacity];
  int32_t tile_chunks;
  uint64_t policy;
};

// Sums the units of a tile that begins at chunk `chunk`, and puts their sums into `sums`. The warps take the units in turn.
// Returns the number of units.
template <int V, Walk walk, class Source, class Acc>
__device__ __forceinline__ int take_tile(const DenseArgs<Source, Acc>& a, int64_t chunk, int chunks, Acc* sums) {
  constexpr int kUnit = row_unit(V, kDepth, sizeof(typename Source::Element), walk), kChunkUnits = kLanes / kUnit;
  const int64_t left = (leaf_count(a.length) - chunk * kLanes + kUnit - 1) / kUnit;
  const int units = static_cast<int>(min(left, int64_t{chunks} * kChunkUnits)), warp = threadIdx.x / kWarp;
  const bool has_rest = walk == Walk::shifted && left == units && row_rest(a.length) > 0;
  for (int unit = warp; unit < units - has_rest; unit += kManyWarps) {
    const Acc v = dense_unit<V, kDepth, walk>(a, a.source, 0, static_cast<uint32_t>(chunk * kChunkUnits + unit));
    if (threadIdx.x % kWarp == 0) sums[unit] = v;
  }
  if (has_rest && warp == kManyWarps - 1) {
    const Acc v = join_rest<Acc>(load_rest<walk>(a, a.source, 0));
    if (threadIdx.x % kWarp == 0) sums[units - 1] = v;
  }
  return units;
}

template <class Element, class Acc, int kCapacity>
__global__ void __launch_bounds__(kManyWarps* kWarp, 3) many_arrays(const __grid_constant__ ManyArgs<Acc, kCapacity> many) {
  constexpr int V = kGranule / sizeof(Element), kMost = kMostTileChunks * kLanes / row_unit(V, kDepth, sizeof(Element));
  constexpr int kRun = kMost / kWarp;
  __shared__ Acc sums[kMost];
  const int array = many.tiles.array_of(blockIdx.x);
  const int64_t chunk = int64_t{blockIdx.x - many.tiles.first[array]} * many.tile_chunks;
  using Source = Typed<Element>;
  DenseArgs<Source, Acc> a{};
  a.source = {static_cast<const Element*>(many.data[array]), many.policy, {}};
  a.length = many.length[array];
  a.input = {static_cast<const char*>(many.data[array]),
             static_cast<const char*>(many.data[array]) + a.length * sizeof(Element)};
  wait_for_previous_kernel();
  allow_next_kernel();
  const int units = a.source.template misalignment<V>(0) == 0 ? take_tile<V, Walk::dense>(a, chunk, many.tile_chunks, sums)
                    : a.length > kLanes                       ? take_tile<V, Walk::shifted>(a, chunk, many.tile_chunks, sums)
                                                              : take_tile<1, Walk::dense>(a, chunk, many.tile_chunks, sums);
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  Acc run[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const int unit = threadIdx.x * kRun + i;
    run[i] = unit < units ? sums[unit] : padding<Acc>();
  }
  Acc v = warp_join(join_neighbours(run));
  if (threadIdx.x > 0) return;
  if (a.length == 0) v = 0;
  if (many.tiles.partials) many.tiles.partials[blockIdx.x] = v;
  else store_native(many.tiles.results, array, 0, many.tiles.out, {v});
}

// Joins the partial results of each array, one block per array. A thread takes `run` neighbours: a power of two, at least
// kJoinRun.
template <class Acc, int kCapacity>
__global__ void __launch_bounds__(1024) join_arrays(const __grid_constant__ ManyTiles<Acc, kCapacity> tiles) {
  __shared__ Acc slots[kWarp];
  const int array = blockIdx.x, count = static_cast<int>(tiles.first[array + 1] - tiles.first[array]);
  const Acc* partials = tiles.partials + tiles.first[array];
  int run = kJoinRun;
  while (run * static_cast<int>(blockDim.x) < count) run *= 2;
  wait_for_previous_kernel();
  allow_next_kernel();
  Acc waiting[levels_of(kMostJoined)], sum = padding<Acc>();
  for (int k = 0; k < run / kJoinRun; ++k) {
    Acc v[kJoinRun];
#pragma unroll
    for (int i = 0; i < kJoinRun; ++i) {
      const int at = threadIdx.x * run + k * kJoinRun + i;
      v[i] = at < count ? partials[at] : padding<Acc>();
    }
    sum = join_neighbours(v);
    carry(waiting, sum, k);
  }
  if (block_join(sum, blockDim.x, slots)) store_native(tiles.results, array, 0, tiles.out, {sum});
}

}  // namespace gpureduce::cuda
