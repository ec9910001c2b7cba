// Reductions whose fastest dim in memory is reduced.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

// One unit of an output, for one warp: row_groups() groups; in each, thread t owns leaves t * V ... t * V + V - 1, and has the
// up to kElements elements of every leaf in flight at once. Across the warp each load is whole lines.
template <int V, int kElements, Walk walk, class Source, class Acc>
__device__ __forceinline__ Acc row_unit(const Args<Source, Acc>& a, int64_t row, int64_t leaf) {
  using Element = typename Source::Element;
  constexpr int kCount = row_groups(V, kElements);
  const int64_t chunk = leaf / kLanes * kChunk;
  const int first = static_cast<int>(leaf % kLanes) + threadIdx.x % kWarp * V;
  const int64_t rest = a.length - chunk;
  const int left = rest < kChunk ? static_cast<int>(rest) : kChunk;
  Vector<Element, V> x[kCount][kElements];
  RowLanes<Element, Acc, V> lanes[kCount];
  if (kCount == 1 && walk == Walk::dense && left == kChunk) {  // the same without its conditions, where most of the work is
#pragma unroll
    for (int d = 0; d < kElements; ++d) x[0][d] = a.source.template load<V>(row + chunk + first + d * kLanes);
    lanes[0].start(x[0][0]);
#pragma unroll
    for (int d = 1; d < kElements; ++d) lanes[0].add(x[0][d]);
    return warp_join(lanes[0].join());
  }
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
#pragma unroll
    for (int d = 0; d < kElements; ++d) {
      const int e = first + g * kWarp * V + d * kLanes;
      x[g][d] = a.source.template load_if<V>(e + V <= left, row + a.template element<walk>(chunk + e));
    }
  }
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    lanes[g].start(x[g][0]);
#pragma unroll
    for (int d = 1; d < kElements; ++d) lanes[g].add(x[g][d]);
  }
  if constexpr (V > 1) {
    // The row's last, incomplete vector: its elements are the last of their lanes.
    const int tail = left % V, e = left - tail;
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
      if (tail && e % kLanes == first + g * kWarp * V) {
#pragma unroll
        for (int j = 0; j < V - 1; ++j)
          if (j < tail) lanes[g].add(j, a.source.template load<1>(row + a.template element<walk>(chunk + e + j))[0]);
      }
    }
  }
  Acc values[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) values[g] = lanes[g].join();
  return warp_join_groups(values);
}

// A block takes tiles: the units of one long row or of several shorter ones. Its warps take unit after unit, each value goes to
// a slot, and one thread a slot joins them.
template <int V, int kElements, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxRowWarps* kWarp, sizeof(RowLanes<typename Source::Element, Acc, V>) <= 64 ? 2 : 1)
    rows(const __grid_constant__ Args<Source, Acc> a) {
  __shared__ Acc slots[kMaxRowWarps * kWarp], warp_slots[kWarp];
  constexpr int kUnitLeaves = row_groups(V, kElements) * kWarp * V;
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
      if (leaf < a.tiling.leaves) v = row_unit<V, kElements, walk>(a, a.kept.at(tile.output + row).in, leaf);
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
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp) packed(const __grid_constant__ Args<Source, Acc> a) {
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
      if (inside && lane % width == 0)
        a.output.write(a.kept, tile.output + first + i * side, tile.partial + first + i * side, v);
    }
  }
}

}  // namespace gpureduce::cuda
