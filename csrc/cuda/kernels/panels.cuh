// Columns one stride from row to row: the common case, with as little as can be between a block's start
// and its loads, and after them; for while a block starts or ends it loads nothing.
#pragma once

#include "../load/shifted.cuh"
#include "columns.cuh"

namespace gpureduce::cuda {

template <class Source, class Acc>
struct PanelArgs {
  using Place = typename Source::Place;

  Source source;
  Place pitch;                               // from one row to the next
  int64_t length;                            // rows
  int32_t columns, reach;                    // of a batch; of a tile
  int32_t tile_leaves;                       // a power of two
  int32_t units;                             // of a tile
  int8_t warps;                              // of a block
  int8_t log_width;                          // threads of a warp side by side
  int8_t log_rows, log_parts;                // rows that are joined at the end; threads that join a column's
  bool nested;                               // batches stand in nested dims
  Place batch_pitch;                         // from one to the next
  int64_t result_pitch, result_batch_pitch;  // of columns, and of batches
  int64_t partial_output_stride, partial_split_stride;
  InputSpan input;
  Output<Acc, typename Source::Element> output;
  Nest<Source::kRank, Place> kept;

  // The first column of a batch: of the last dim that is kept.
  __device__ __forceinline__ Spot<Place> place(uint32_t batch) const {
    if (nested) return kept.at_row(batch);
    return {batch_pitch * batch, batch * result_batch_pitch};
  }
};

// Loads kLeaves neighbouring leaves of V columns, up to kElements elements each, of which load(row) brings one; all in flight
// at once.
template <int kLeaves, int kElements, class Element, int V, class Load>
__device__ __forceinline__ void load_leaves(Vector<Element, V> (&x)[kLeaves][kElements], Load load) {
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
    for (int d = 0; d < kElements; ++d) x[l][d] = load(l + d * kLanes);
  }
}

// Joins 1 << log_count values, `step` apart, of at most 1 << kLogPanelRows.
template <class Acc, int kLogCount = 0, class LaneSum>
__device__ __forceinline__ Acc join_slots(const LaneSum* slots, int step, int log_count) {
  if constexpr (kLogCount < kLogPanelRows)
    if (log_count > kLogCount) return join_slots<Acc, kLogCount + 1>(slots, step, log_count);
  Acc v[1 << kLogCount];
#pragma unroll
  for (int i = 0; i < 1 << kLogCount; ++i) v[i] = widened<Acc>(slots[i * step]);
  return join_neighbours(v);
}

template <class Source, class Acc, int V>
constexpr int panel_words = sizeof(Lanes<typename Source::Element, Acc, V>) / 4;

// As in the columns kernel, a warp reads 1 << log_width threads side by side, what is left of it takes further leaves of the
// same columns, and so do the other warps, unit after unit. A thread takes kLoads / kElements leaves of a unit, whose values
// are joined across the warp, and a column's through shared memory, where each unit has a row. Integers, whose order is free,
// are added up to the warp's last unit instead, and joined once.
//
// Columns at odd addresses: Walk::shifted, of which a tile has so many fewer that its threads' vectors hold them wherever they
// begin; or Walk::spread, of which a thread has every 1 << log_width th, so that the warp's loads are whole lines nevertheless.
template <int V, int kElements, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp, (panel_wave(panel_words<Source, Acc, V>, walk) / kMaxColumnWarps))
    panels(const __grid_constant__ PanelArgs<Source, Acc> a) {
  using Element = typename Source::Element;
  using Batch = Lanes<Element, Acc, V>;
  using LaneSum = typename Batch::LaneSum;
  constexpr int kLeaves = kLoads / kElements;
  constexpr bool kSkips = walk != Walk::shifted || sizeof(LaneSum) == 4;  // units without rows; else registers are too few
  extern __shared__ __align__(kLine) char memory[];
  LaneSum* const slots = reinterpret_cast<LaneSum*>(memory);  // rows of `side` values
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = a.warps;
  const int width = 1 << a.log_width, side = width * V, row = lane >> a.log_width;
  const int column = (lane & (width - 1)) * (walk == Walk::spread ? 1 : V);
  const int first_column = blockIdx.x * a.reach, outputs = min(a.columns - first_column, a.reach);
  const int64_t first_row = leaf_start(int64_t{blockIdx.y} * a.tile_leaves);
  const int rows = static_cast<int>(min(a.length - first_row, int64_t{1} << 30));  // more than a tile has
  const auto batch_place = a.place(blockIdx.z);
  // Where the thread's loads of a row begin. What is beyond the last column reads the first, for nothing.
  constexpr int kMine = walk == Walk::spread ? V : 1;
  int mine[kMine];
#pragma unroll
  for (int j = 0; j < kMine; ++j) mine[j] = column + j * width < outputs ? column + j * width : 0;
  const auto top = batch_place.in + beside(a.source, first_column + (walk == Walk::linear ? mine[0] : 0));
  const auto place = top + a.pitch * first_row;
  const int log_part = a.log_rows - a.log_parts, log_turn = max(5 - a.log_parts, 2);
  // Takes the thread's leaves of a unit: where the order is free, their sum is added to `sum`; or else `sum` becomes it.
  const auto take_leaves = [&](const auto& own, Batch& sum, auto whole, typename Source::Place at, int left) {
    if constexpr (walk == Walk::shifted) {
      const Batch more =
          shifted_leaves<V, kElements, kLeaves, whole, Acc>(a.source, a.input, at, a.pitch, left, column, outputs);
      if constexpr (Batch::kOrderFree) sum.add(more);
      else sum = more;
    } else {
      Vector<Element, V> x[kLeaves][kElements];
      load_leaves(x, [&](int row) {
        const auto first = at + a.pitch * row;
        if constexpr (walk == Walk::spread) {
          Vector<Element, V> v;
#pragma unroll
          for (int j = 0; j < V; ++j) v.set(j, load_part<1, whole>(own, row < left, first + mine[j])[0]);
          return v;
        } else {
          return load_part<V, whole>(own, row < left, first);
        }
      });
      if constexpr (Batch::kOrderFree) add_leaves(sum, x);
      else sum = join_leaves<Acc>(x);
    }
  };
  wait_for_previous_kernel();
  allow_next_kernel();
  const auto& own = of_outputs<V>(a.source, true, top);
  // Rows are turned, so that the threads that join one column read different banks.
  const auto place_in = [&](int row, int c) { return slots + row * side + (c ^ ((row >> log_part << log_turn) & (side - 1))); };
  const auto keep_in = [&](int row, const Batch& batch) {
    if constexpr (walk == Walk::spread) {
#pragma unroll
      for (int j = 0; j < V; ++j) *place_in(row, column + j * width) = batch.sum[j];
    } else {
      store_granules([&](int g) { return place_in(row, column + g); }, batch.sum);
    }
  };
  Batch batch;  // where the order is free, of all units
  batch.clear();
#pragma unroll 1
  for (int unit = warp; unit < a.units; unit += warps) {
    const auto leaf_of = [&](int row) { return static_cast<uint32_t>(unit * kWarp + row * width) * kLeaves >> a.log_width; };
    const uint32_t leaf = leaf_of(row);
    const int begin = static_cast<int>(leaf_start(leaf)), left = rows - begin;
    const auto at = place + a.pitch * begin;
    const int last = kLeaves - 1 + (kElements - 1) * kLanes;  // of the thread's rows
    bool whole = left > last;
    // What lies around shifted columns must be the input's, too; and their sums change hands, so that all threads go one way.
    if constexpr (walk == Walk::shifted)
      whole = __all_sync(0xffffffffu, whole && a.source.inside(a.input, at - V, at + last * a.pitch + side + V));
    if (whole) {
      take_leaves(own, batch, std::true_type{}, at, left);
    } else if (kSkips && rows <= static_cast<int>(leaf_start(leaf_of(0)))) {
      if constexpr (!Batch::kOrderFree) batch.clear();
    } else {
      // Where ptxas 13.0 knows that a row is not there, it takes float8's padding for another number. So it must not know.
      int some = left;
      asm volatile("" : "+r"(some));
      take_leaves(own, batch, std::false_type{}, at, some);
    }
    if constexpr (!Batch::kOrderFree) {
      join_leaves_of_warp(batch, width);
      if (lane < width) keep_in(unit, batch);
    }
  }
  if constexpr (Batch::kOrderFree) {
    join_leaves_of_warp(batch, width);
    if (lane < width) keep_in(warp, batch);
  }
  __syncthreads();
  for (int base = 0; base < side << a.log_parts; base += blockDim.x) {
    const int i = base + threadIdx.x, c = i >> a.log_parts, part = i & ((1 << a.log_parts) - 1);
    const LaneSum* own_part = place_in(part << log_part, c & (side - 1));
    const Acc sum = warp_join(join_slots<Acc>(own_part, side, log_part), 1, 1 << a.log_parts);
    if (c >= outputs || part > 0) continue;
    const int64_t output = first_column + c;
    a.output.write_at(
        Spot<typename Source::Place>{batch_place.in + beside(a.source, output), batch_place.out + output * a.result_pitch},
        (int64_t{blockIdx.z} * a.columns + output) * a.partial_output_stride + blockIdx.y * a.partial_split_stride, sum);
  }
}

}  // namespace gpureduce::cuda
