// Rows in any dims that are too many, or too long in nested dims, for what other kernels count in 32 bits.
#pragma once

#include "../args.cuh"

namespace gpureduce::cuda {

// The unit of an output from `leaf` on, for one warp: across it each load is whole lines.
template <class Source, class Acc>
__device__ __forceinline__ Acc unit_sum(const Args<Source, Acc>& a, int64_t row, int64_t leaf) {
  using Element = typename Source::Element;
  constexpr int kCount = row_groups(1, kDepth, sizeof(Element));
  const int64_t chunk = leaf / kLanes * kChunk;
  const int first = static_cast<int>(leaf % kLanes) + threadIdx.x % kWarp;
  const int left = static_cast<int>(min(a.length - chunk, int64_t{kChunk}));
  Vector<Element, 1> x[kCount][kDepth];
  load_deep<false>(x, a.source, a.reduced, a.next_in_lane, row, chunk + first, left - first);
  Acc values[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    RowLanes<Element, Acc, 1> lanes;
    lanes.start(x[g][0]);
#pragma unroll
    for (int d = 1; d < kDepth; ++d) lanes.add(x[g][d]);
    values[g] = lanes.join();
  }
  return warp_join_groups(values);
}

// A block takes tiles: the units of one long row or of several shorter ones. Its warps take unit after unit, each value goes to
// a slot, and one thread a slot joins them.
template <class Source, class Acc>
__global__ void __launch_bounds__(kMaxRowWarps* kWarp, 2) rows(const __grid_constant__ Args<Source, Acc> a) {
  __shared__ Acc slots[kMaxRowWarps * kWarp], warp_slots[kWarp];
  constexpr int kUnitLeaves = row_unit(1, kDepth, sizeof(typename Source::Element));
  const int thread = threadIdx.x, warps = blockDim.x / kWarp;
  const int row_units = a.tiling.tile_leaves / kUnitLeaves, shift = __ffs(row_units) - 1;  // slots of a row: a power of two
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int64_t index = blockIdx.x; index < a.tiling.tiles; index += gridDim.x) {
    const Tile tile = a.tiling.tile(static_cast<uint64_t>(index));
    const int outputs = static_cast<int>(tile.outputs);
    const int units = static_cast<int>((tile.leaves + kUnitLeaves - 1) / kUnitLeaves), log_units = __ffs(units) - 1;
    for (int i = thread / kWarp; i < outputs * units; i += warps) {
      const int row = units == 1 << log_units ? i >> log_units : i / units, unit = i - row * units;
      const Acc v = unit_sum(a, a.kept.at(tile.output + row).in, tile.leaf + int64_t{unit} * kUnitLeaves);
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

}  // namespace gpureduce::cuda
