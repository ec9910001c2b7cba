// Reductions whose fastest dim in memory is reduced.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

// One unit: 32 * V neighbouring leaves of an output, one warp. Thread t owns leaves t * V ... t * V + V - 1 of it and has all
// their elements in flight at once: kLoads vector loads, each a whole line or more across the warp.
template <int V, Walk walk, class Source, class Acc>
__device__ __forceinline__ Acc row_unit(const Args<Source, Acc>& a, int64_t row, int64_t leaf) {
  using Element = typename Source::Element;
  const int64_t chunk = leaf / kLanes * kChunk;
  const int first = static_cast<int>(leaf % kLanes) + threadIdx.x % kWarp * V;
  const int64_t rest = a.length - chunk;
  const int left = rest < kChunk ? static_cast<int>(rest) : kChunk;
  Vector<Element, V> x[kLoads];
  RowLanes<Element, Acc, V> lanes;
  if (walk == Walk::dense && left == kChunk) {  // the same without its conditions: less code where most of the work is
#pragma unroll
    for (int d = 0; d < kLoads; ++d) x[d] = a.source.template load<V>(row + chunk + first + d * kLanes);
    lanes.start(x[0]);
#pragma unroll
    for (int d = 1; d < kLoads; ++d) lanes.add(x[d]);
    return warp_join(lanes.join());
  }
#pragma unroll
  for (int d = 0; d < kLoads; ++d) {
    const int e = first + d * kLanes;
    x[d] = a.source.template load_if<V>(e + V <= left, row + a.template element<walk>(chunk + e));
  }
  lanes.start(x[0]);
#pragma unroll
  for (int d = 1; d < kLoads; ++d) lanes.add(x[d]);
  if constexpr (V > 1) {
    // The row's last, incomplete vector: its elements are the last of their lanes.
    const int tail = left % V, e = left - tail;
    if (tail && e % kLanes == first) {
#pragma unroll
      for (int j = 0; j < V - 1; ++j)
        if (j < tail) lanes.add(j, a.source.template load<1>(row + a.template element<walk>(chunk + e + j))[0]);
    }
  }
  return warp_join(lanes.join());
}

// A block takes tiles: the units of one long row or of several shorter ones. Its warps take unit after unit, each value goes to
// a slot, and one thread a slot joins them.
template <int V, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxRowWarps * kWarp, sizeof(RowLanes<typename Source::Element, Acc, V>) <= 64 ? 2 : 1)
    rows(const __grid_constant__ Args<Source, Acc> a) {
  __shared__ Acc slots[kMaxRowWarps * kWarp], warp_slots[kWarp];
  constexpr int kUnitLeaves = kWarp * V;
  const int thread = threadIdx.x, warps = blockDim.x / kWarp;
  const int row_units = a.tiling.tile_leaves / kUnitLeaves, shift = __ffs(row_units) - 1;  // a power of two
  allow_next_kernel();
  for (int64_t index = blockIdx.x; index < a.tiling.tiles; index += gridDim.x) {
    const Tile tile = a.tiling.tile(static_cast<uint32_t>(index));
    const int units = static_cast<int>(tile.outputs) * row_units;
    for (int u = thread / kWarp; u < units; u += warps) {
      const int row = u >> shift;
      const int64_t leaf = tile.leaf + (u & (row_units - 1)) * kUnitLeaves;
      Acc v = padding<Acc>();
      if (leaf < a.tiling.leaves) v = row_unit<V, walk>(a, a.kept.at(tile.output + row).in, leaf);
      if (thread % kWarp == 0) slots[u] = v;
    }
    __syncthreads();
    Acc v = thread < units ? slots[thread] : padding<Acc>();
    if (block_join(v, row_units, warp_slots) && thread < units) {
      const int row = thread >> shift;
      a.output.write(a.kept, tile.output + row, tile.partial + row * a.tiling.partial_output_stride, v);
    }
    __syncthreads();  // the slots are free again
  }
}

// Rows of at most 32 * V elements, so that every element is a leaf: `warp_columns` threads a row, several rows side by side in
// a warp, kLoads of them one below the other in flight.
template <int V, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps * kWarp) packed(const __grid_constant__ Args<Source, Acc> a) {
  using Element = typename Source::Element;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int width = a.warp_columns, side = kWarp / width;
  const int e = lane % width * V, length = static_cast<int>(a.length);
  for (int64_t index = blockIdx.x; index < a.tiling.tiles; index += gridDim.x) {
    const Tile tile = a.tiling.tile(static_cast<uint32_t>(index));
    const int first = warp * kLoads * side + lane / width;  // row of the tile
    int64_t row[kLoads];
    Vector<Element, V> x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool inside = first + i * side < tile.outputs;
      row[i] = inside ? a.kept.at(tile.output + first + i * side).in : 0;
      x[i] = a.source.template load_if<V>(inside && e + V <= length, row[i] + a.template element<walk>(e));
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool inside = first + i * side < tile.outputs;
      RowLanes<Element, Acc, V> lanes;
      lanes.start(x[i]);
      if constexpr (V > 1) {
        const int tail = length % V;
        if (inside && tail && e == length - tail) {
#pragma unroll
          for (int j = 0; j < V - 1; ++j)
            if (j < tail) lanes.add(j, a.source.template load<1>(row[i] + a.template element<walk>(e + j))[0]);
        }
      }
      const Acc v = warp_join(lanes.join(), 1, width);
      if (inside && lane % width == 0) a.output.write(a.kept, tile.output + first + i * side, tile.partial + first + i * side, v);
    }
  }
}

}  // namespace gpureduce::cuda
