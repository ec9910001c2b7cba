// Reductions whose fastest dim in memory is reduced: the general way, for rows in any dims; and short rows a stride apart.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

// The unit of an output from `leaf` on, for one warp: across it each load is whole lines.
template <int V, class Source, class Acc>
__device__ __forceinline__ Acc unit_sum(const Args<Source, Acc>& a, int64_t row, int64_t leaf) {
  using Element = typename Source::Element;
  constexpr int kCount = row_groups(V, kDepth, sizeof(Element));
  const int64_t chunk = leaf / kLanes * kChunk;
  const int first = static_cast<int>(leaf % kLanes) + threadIdx.x % kWarp * V;
  const int left = static_cast<int>(min(a.length - chunk, int64_t{kChunk}));
  Vector<Element, V> x[kCount][kDepth];
  if (a.next_in_lane.size) {
    load_nested<false>(x, a.source, a.reduced, a.next_in_lane, row, chunk + first, left - first);
  } else {
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
      int e = first + g * kWarp * V;
#pragma unroll
      for (int d = 0; d < kDepth; ++d, e += kLanes)
        x[g][d] = a.source.template load_if<V>(e + V <= left, row + a.reduced.at(chunk + e).in);
    }
  }
  Acc values[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    RowLanes<Element, Acc, V> lanes;
    lanes.start(x[g][0]);
#pragma unroll
    for (int d = 1; d < kDepth; ++d) lanes.add(x[g][d]);
    values[g] = lanes.join();
  }
  return warp_join_groups(values);
}

// A block takes tiles: the units of one long row or of several shorter ones. Its warps take unit after unit, each value goes to
// a slot, and one thread a slot joins them.
template <int V, class Source, class Acc>
__global__ void __launch_bounds__(kMaxRowWarps* kWarp, sizeof(RowLanes<typename Source::Element, Acc, V>) <= 64 ? 2 : 1)
    rows(const __grid_constant__ Args<Source, Acc> a) {
  __shared__ Acc slots[kMaxRowWarps * kWarp], warp_slots[kWarp];
  constexpr int kUnitLeaves = row_unit(V, kDepth, sizeof(typename Source::Element));
  const int thread = threadIdx.x, warps = blockDim.x / kWarp;
  const int row_units = a.tiling.tile_leaves / kUnitLeaves, shift = __ffs(row_units) - 1;  // slots of a row: a power of two
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int64_t index = blockIdx.x; index < a.tiling.tiles; index += gridDim.x) {
    const Tile tile = a.tiling.tile(static_cast<uint32_t>(index));
    const int outputs = static_cast<int>(tile.outputs);
    const int units = static_cast<int>((tile.leaves + kUnitLeaves - 1) / kUnitLeaves), log_units = __ffs(units) - 1;
    for (int i = thread / kWarp; i < outputs * units; i += warps) {
      const int row = units == 1 << log_units ? i >> log_units : i / units, unit = i - row * units;
      const Acc v = unit_sum<V>(a, a.kept.at(tile.output + row).in, tile.leaf + int64_t{unit} * kUnitLeaves);
      if (thread % kWarp == 0) slots[row * row_units + unit] = v;
    }
    __syncthreads();
    const int row = thread >> shift;
    const bool inside = row < tile.outputs;
    Acc v = inside && (thread & (row_units - 1)) < units ? slots[thread] : padding<Acc>();
    if (block_join(v, row_units, warp_slots) && inside) {
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
  const int width = a.warp_columns, log_width = __ffs(width) - 1, side = kWarp >> log_width;
  const int e = (lane & (width - 1)) * V, length = static_cast<int>(a.length);
  wait_for_previous_kernel();
  allow_next_kernel();
  TileLoop loop;
  do {
    const Tile tile = loop.tile(a.tiling);
    const int first = warp * kLoads * side + (lane >> log_width);  // row of the tile
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
      if constexpr (V > 1 && walk == Walk::dense) {
        const int tail = length % V;
        if (inside && tail && e == length - tail) {
#pragma unroll
          for (int j = 0; j < V - 1; ++j)
            if (j < tail) lanes.add(j, a.source.template load<1>(row[i] + a.template element<walk>(e + j))[0]);
        }
      }
      const Acc v = warp_join(lanes.join(), 1, width);
      if (inside && e == 0) a.output.write(a.kept, tile.output + first + i * side, tile.partial + first + i * side, v);
    }
  } while (loop.next(a.tiling));
}

}  // namespace gpureduce::cuda
