// Columns with one stride from row to row, the common case. The kernel does as little as possible before and after a block's
// loads, because a block that starts or ends loads nothing.
//
// For example a (1000, 256) float32 tensor, summed over dim 0, with V = 4 and kElements = 2. 8 threads side by side cover 32
// columns, and each of the warp's 4 rows of threads takes 4 leaves: a unit is 16 leaves. Thread 0 loads columns 0-3 of rows 0-3
// and 512-515, 8 vectors in flight at once. It adds rows 0 and 512, 1 and 513, ... and joins the four leaves. Shuffles join
// threads 0, 8, 16 and 24, and threads 0-7 put the unit's 32 sums into a row of shared memory. The 8 warps of a block take the
// 32 units of the 512 leaves in turn. After a barrier 8 threads per column join 4 rows each, shuffles join the 8, and one of
// them writes the result.
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
  int32_t columns, reach;                    // columns of a batch, and of a tile
  int32_t tile_leaves;                       // a power of two
  int32_t units;                             // of a tile
  int8_t warps;                              // per block
  int8_t log_width;                          // threads of a warp side by side
  int8_t log_rows, log_parts;                // rows of sums in shared memory; threads that join them, per column
  bool nested;                               // batches are in nested dims
  Place batch_pitch;                         // from one batch to the next
  int64_t result_pitch, result_batch_pitch;  // of columns, and of batches
  int64_t partial_output_stride, partial_split_stride;
  InputSpan input;
  Output<Acc, typename Source::Element> output;
  Nest<Source::kRank, Place> kept;

  // The place of a batch's first column. A batch is a row of the last kept dim.
  __device__ __forceinline__ Spot<Place> place(uint32_t batch) const {
    if (nested) return kept.at_row(batch);
    return {batch_pitch * batch, batch * result_batch_pitch};
  }
};

// Loads kLeaves neighbouring leaves of V columns, with up to kElements elements per leaf, all in flight at once. load(row)
// loads one vector.
template <int kLeaves, int kElements, class Element, int V, class Load>
__device__ __forceinline__ void load_leaves(Vector<Element, V> (&x)[kLeaves][kElements], Load load) {
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
    for (int d = 0; d < kElements; ++d) x[l][d] = load(l + d * kLanes);
  }
}

// Joins 1 << log_count values that lie `step` apart, at most 1 << kLogPanelRows of them.
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

// As in columns(), a warp reads 1 << log_width threads side by side. Its other threads take further leaves of the same columns,
// and so do the other warps, unit after unit. A thread takes kLoads / kElements leaves of a unit. Their values are joined
// across the warp, and then for each column through shared memory, where each unit has a row. Integers, whose order is free,
// are added up over all units of a warp, and joined once.
//
// Columns at misaligned addresses: with Walk::shifted a tile has V - 1 columns fewer, so that its threads' aligned vectors hold
// them wherever they begin. With Walk::spread a thread reads V single columns that lie 1 << log_width apart, so that each load
// of the warp is contiguous.
template <int V, int kElements, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp, (panel_wave(panel_words<Source, Acc, V>, walk) / kMaxColumnWarps))
    panels(const __grid_constant__ PanelArgs<Source, Acc> a) {
  using Element = typename Source::Element;
  using Batch = Lanes<Element, Acc, V>;
  using LaneSum = typename Batch::LaneSum;
  constexpr int kLeaves = kLoads / kElements;
  // True if units without rows are skipped. The other variants lack the registers for that.
  constexpr bool kSkips = walk != Walk::shifted || sizeof(LaneSum) == 4;
  extern __shared__ __align__(kLine) char memory[];
  LaneSum* const slots = reinterpret_cast<LaneSum*>(memory);  // rows of `side` values
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = a.warps;
  const int width = 1 << a.log_width, side = width * V, row = lane >> a.log_width;
  const int column = (lane & (width - 1)) * (walk == Walk::spread ? 1 : V);
  const int first_column = blockIdx.x * a.reach, outputs = min(a.columns - first_column, a.reach);
  const int64_t first_row = leaf_start(int64_t{blockIdx.y} * a.tile_leaves);
  const int rows = static_cast<int>(min(a.length - first_row, int64_t{1} << 30));  // or a number above any tile's
  const auto batch_place = a.place(blockIdx.z);
  // The columns where the thread's loads of a row begin. A thread beyond the last column reads the first one, and its sums are
  // not used.
  constexpr int kThreadColumns = walk == Walk::spread ? V : 1;
  int thread_columns[kThreadColumns];
#pragma unroll
  for (int j = 0; j < kThreadColumns; ++j) thread_columns[j] = column + j * width < outputs ? column + j * width : 0;
  const auto top = batch_place.in + beside(a.source, first_column + (walk == Walk::linear ? thread_columns[0] : 0));
  const auto place = top + a.pitch * first_row;
  const int log_part = a.log_rows - a.log_parts, log_turn = max(5 - a.log_parts, 2);
  // Sums the thread's leaves of a unit: adds them to `sum` if the order is free, and otherwise sets `sum`.
  const auto take_leaves = [&](const auto& source, Batch& sum, auto whole, typename Source::Place at, int left) {
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
          for (int j = 0; j < V; ++j) v.set(j, load_part<1, whole>(source, row < left, first + thread_columns[j])[0]);
          return v;
        } else {
          return load_part<V, whole>(source, row < left, first);
        }
      });
      if constexpr (Batch::kOrderFree) add_leaves(sum, x);
      else sum = join_leaves<Acc>(x);
    }
  };
  wait_for_previous_kernel();
  allow_next_kernel();
  const auto& source = of_outputs<V>(a.source, true, top, int64_t{blockIdx.z} * a.columns + first_column + thread_columns[0]);
  // Rows are swizzled, so that the threads that join one column read different banks.
  const auto place_in = [&](int row, int c) { return slots + row * side + (c ^ ((row >> log_part << log_turn) & (side - 1))); };
  const auto keep_in = [&](int row, const Batch& batch) {
    if constexpr (walk == Walk::spread) {
#pragma unroll
      for (int j = 0; j < V; ++j) *place_in(row, column + j * width) = batch.sum[j];
    } else {
      store_granules([&](int g) { return place_in(row, column + g); }, batch.sum);
    }
  };
  Batch batch;  // of all units, if the order is free
  batch.clear();
#pragma unroll 1
  for (int unit = warp; unit < a.units; unit += warps) {
    const auto leaf_of = [&](int row) { return static_cast<uint32_t>(unit * kWarp + row * width) * kLeaves >> a.log_width; };
    const uint32_t leaf = leaf_of(row);
    const int begin = static_cast<int>(leaf_start(leaf)), left = rows - begin;
    const auto at = place + a.pitch * begin;
    const int last = kLeaves - 1 + (kElements - 1) * kLanes;  // the thread's last row
    bool whole = left > last;
    // Shifted vectors also read what lies beside the tile, which must be within the input. Their sums move between threads, so
    // the whole warp takes the same branch.
    if constexpr (walk == Walk::shifted)
      whole = __all_sync(0xffffffffu, whole && a.source.inside(a.input, at - V, at + last * a.pitch + side + V));
    if (whole) {
      take_leaves(source, batch, std::true_type{}, at, left);
    } else if (kSkips && rows <= static_cast<int>(leaf_start(leaf_of(0)))) {
      if constexpr (!Batch::kOrderFree) batch.clear();
    } else {
      // If ptxas 13.0 knows that a row does not exist, it replaces float8's padding by another number. The asm hides it.
      int hidden_left = left;
      asm volatile("" : "+r"(hidden_left));
      take_leaves(source, batch, std::false_type{}, at, hidden_left);
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
    const LaneSum* part_slots = place_in(part << log_part, c & (side - 1));
    const Acc sum = warp_join(join_slots<Acc>(part_slots, side, log_part), 1, 1 << a.log_parts);
    if (c >= outputs || part > 0) continue;
    const int64_t output = first_column + c;
    a.output.write_at(
        Spot<typename Source::Place>{batch_place.in + beside(a.source, output), batch_place.out + output * a.result_pitch},
        (int64_t{blockIdx.z} * a.columns + output) * a.partial_output_stride + blockIdx.y * a.partial_split_stride, sum);
  }
}

}  // namespace gpureduce::cuda
