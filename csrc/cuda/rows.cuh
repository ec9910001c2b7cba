// Reductions whose fastest dim in memory is reduced.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

// A unit's elements, of the chunk from element `chunk` on, `left` of which are there: kCount groups; in each, the thread
// owns leaves `first` to before first + V of the chunk, and has the up to kElements elements of every leaf in flight at once.
// kWhole: they are all there.
template <int V, int kElements, int kCount, Walk walk, bool kWhole, class Source, class Acc>
__device__ __forceinline__ Acc unit_elements(const Args<Source, Acc>& a, int64_t row, int64_t chunk, int first, int left) {
  using Element = typename Source::Element;
  Vector<Element, V> x[kCount][kElements];
  if constexpr (walk == Walk::dense) {
    load_unit<kWhole>(x, a.source, row + chunk + first, left - first);
  } else if constexpr (walk == Walk::linear) {
    const int64_t next = a.template element<walk>(kLanes);
    int64_t at[kCount];
#pragma unroll
    for (int g = 0; g < kCount; ++g) at[g] = row + a.template element<walk>(chunk + first + g * kWarp * V);
#pragma unroll
    for (int d = 0; d < kElements; ++d) {
#pragma unroll
      for (int g = 0; g < kCount; ++g) {
        if constexpr (kWhole) x[g][d] = a.source.template load<V>(at[g]);
        else x[g][d] = a.source.template load_if<V>(first + g * kWarp * V + d * kLanes + V <= left, at[g]);
        at[g] += next;
      }
    }
  } else if (walk == Walk::nested && a.next_in_lane.size) {
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
      int e = first + g * kWarp * V;
      Cursor at = a.reduced.cursor(chunk + e);
#pragma unroll
      for (int d = 0; d < kElements; ++d, e += kLanes, a.next_in_lane.move(at))
        x[g][d] = a.source.template load_if<V>(e + V <= left, row + at.offset);
    }
  } else {
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
#pragma unroll
      for (int d = 0; d < kElements; ++d) {
        const int e = first + g * kWarp * V + d * kLanes;
        x[g][d] = a.source.template load_if<V>(e + V <= left, row + a.template element<walk>(chunk + e));
      }
    }
  }
  Acc values[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    RowLanes<Element, Acc, V> lanes;
    lanes.start(x[g][0]);
#pragma unroll
    for (int d = 1; d < kElements; ++d) lanes.add(x[g][d]);
    values[g] = lanes.join();
  }
  return warp_join_groups(values);
}

// The unit of an output from `leaf` on, for one warp. Across it each load is whole lines. Vectors are of nested dims, and
// whole.
template <int V, int kElements, Walk walk, class Source, class Acc>
__device__ __forceinline__ Acc unit_sum(const Args<Source, Acc>& a, int64_t row, int64_t leaf) {
  static_assert(V == 1 || walk == Walk::nested);
  const int64_t chunk = leaf / kLanes * kChunk;
  const int first = static_cast<int>(leaf % kLanes) + threadIdx.x % kWarp * V;
  const int left = static_cast<int>(min(a.length - chunk, int64_t{kChunk}));
  constexpr int kCount = row_groups(V, kElements);
  if constexpr (walk == Walk::dense || walk == Walk::linear) {
    if (left >= kElements * kLanes) return unit_elements<V, kElements, kCount, walk, true>(a, row, chunk, first, left);
    // A row's last chunk, of up to two elements a leaf: float64 (16384, 5001) 149 us, and 163 with loads for eight.
    if constexpr (reads_short(kElements, sizeof(Acc)))
      if (is_short_chunk(left)) return unit_elements<V, 2, kCount, walk, false>(a, row, chunk, first, left);
  }
  return unit_elements<V, kElements, kCount, walk, false>(a, row, chunk, first, left);
}

// A block takes tiles: the units of one long row or of several shorter ones. Its warps take unit after unit, each value goes to
// a slot, and one thread a slot joins them.
template <int V, int kElements, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxRowWarps* kWarp, sizeof(RowLanes<typename Source::Element, Acc, V>) <= 64 ? 2 : 1)
    rows(const __grid_constant__ Args<Source, Acc> a) {
  __shared__ Acc slots[kMaxRowWarps * kWarp], warp_slots[kWarp];
  constexpr int kUnitLeaves = row_unit(V, kElements);
  const int thread = threadIdx.x, warps = blockDim.x / kWarp;
  const int row_units = a.tiling.tile_leaves / kUnitLeaves, shift = __ffs(row_units) - 1;  // slots of a row: a power of two
  // A few elements beyond a row's last whole chunk are no work for a warp: a few threads take them.
  const int64_t whole = a.length / kChunk * kChunk;
  const int rest = a.tiling.splits == 1 ? row_rest(a.length) : 0;
  const int log_rest = rest > 1 ? 32 - __clz(rest - 1) : 0;
  // Nor is a short last chunk work for several, where the block has just one warp more than there are whole units.
  constexpr bool kMayTakeShort = may_take_short(V, kElements, sizeof(typename Source::Element), sizeof(Acc), walk);
  const int whole_units = static_cast<int>(whole / (kElements * kUnitLeaves));
  const bool takes_short = kMayTakeShort && a.tiling.splits == 1 && warps == whole_units + 1 && row_short(a.length) > 0;
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int64_t index = blockIdx.x; index < a.tiling.tiles; index += gridDim.x) {
    const Tile tile = a.tiling.tile(static_cast<uint32_t>(index));
    const int outputs = static_cast<int>(tile.outputs),
              filled = takes_short ? warps : static_cast<int>((tile.leaves + kUnitLeaves - 1) / kUnitLeaves);
    const int busy = filled - (rest > 0), log_busy = __ffs(busy) - 1;
    for (int i = thread / kWarp; i < outputs * busy; i += warps) {
      const int row = busy == 1 << log_busy ? i >> log_busy : i / busy, unit = i - row * busy;
      const int64_t place = a.kept.at(tile.output + row).in;
      const int lane = thread % kWarp;
      if constexpr (kMayTakeShort) {
        if (takes_short && unit == whole_units) {
          static_assert(row_unit(V, 2) == kLanes);
          const Acc v = unit_elements<V, 2, row_groups(V, 2), walk, false>(a, place, whole, lane, row_short(a.length));
          if (lane == 0) slots[row * row_units + unit] = v;
          continue;
        }
      }
      const Acc v = unit_sum<V, kElements, walk>(a, place, tile.leaf + int64_t{unit} * kUnitLeaves);
      if (lane == 0) slots[row * row_units + unit] = v;
    }
    if (rest > 0) {
      for (int i = thread; i - thread % kWarp < outputs << log_rest; i += blockDim.x) {
        const int row = i >> log_rest, e = i - (row << log_rest);
        const bool inside = row < outputs && e < rest;
        const int64_t place = inside ? a.kept.at(tile.output + row).in : 0;
        RowLanes<typename Source::Element, Acc, 1> lane;
        lane.start(a.source.template load_if<1>(inside, place + a.template element<walk>(whole + e)));
        const Acc v = warp_join(lane.join(), 1, 1 << log_rest);
        if (inside && e == 0) slots[row * row_units + busy] = v;
      }
    }
    __syncthreads();
    const int row = thread >> shift;
    const bool inside = row < tile.outputs;
    Acc v = inside && (thread & (row_units - 1)) < filled ? slots[thread] : padding<Acc>();
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
