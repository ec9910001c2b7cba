// Columns in any dims: the fastest dim in memory is kept, and a thread owns V neighbouring outputs.
//
// For example x[:, :100] of an (8, 128, 256) float32 tensor, summed over dims 0 and 1: 256 columns of 800 elements. V = 4,
// kElements = 8, and a thread takes 4 batches. 8 threads side by side cover 32 columns, and the 4 rows of threads of a warp
// take 4 leaves each: a unit is 16 leaves. Thread 0 loads elements 0 and 512 of columns 0-3 (its other six loads are predicated
// off) and adds them as leaf 0. It goes on with leaves 1 to 3, and joins neighbours on the way. Shuffles join threads 0, 8, 16
// and 24, and threads 0-7 put the unit's 32 sums into shared memory. The 8 warps of a block take the 32 units of the 512 leaves
// in turn. After a barrier 4 threads per column join 8 units each, shuffles join the 4, and one of them writes the result.
#pragma once

#include "../args.cuh"

namespace gpureduce::cuda {

// Blocks per multiprocessor for __launch_bounds__. Without it the compiler aims for many more, and saves registers by waiting
// for each load before the next.
template <class Batch, int kBatches>
constexpr int kColumnBlocks = sizeof(Batch) > 64                                                               ? 1
                              : sizeof(Batch) > 32 && kBatches > 2 && !Batch::kOrderFree                       ? 2
                              : kBatches > 1 && sizeof(Batch) > (sizeof(typename Batch::LaneSum) > 4 ? 8 : 16) ? 3
                              : Batch::kOrderFree && sizeof(typename Batch::LaneSum) > 4                       ? 3
                                                                                                               : 4;
// Pairs need registers for the addresses and policies of two inputs.
template <class Element, class Batch, int kBatches>
constexpr int kPairBlocks = has_one_input<Element> || kColumnBlocks<Batch, kBatches> < 3 ? kColumnBlocks<Batch, kBatches> : 3;

// Units of a column that a thread joins at once.
constexpr int kLogSlotRun = 3, kSlotRun = 1 << kLogSlotRun;

// A tile's part of some columns. Leaves are counted from its own first one, so that an int can index its elements.
template <class Place>
struct ColumnPiece {
  Place place;    // of the columns; if elements are one stride apart, of the first element here
  int64_t first;  // index of the first element here
  int length;     // elements from there on, or a number above any tile's
};

// Adds kLeaves neighbouring leaves of V columns to `sum`. Their order is free.
template <class Batch, int kLeaves, int kElements, class Element, int V>
__device__ __forceinline__ void add_leaves(Batch& sum, const Vector<Element, V> (&x)[kLeaves][kElements]) {
  const auto& addends = resolve(x);
  std::decay_t<decltype(addends[0][0])> vectors[kLeaves * kElements];
#pragma unroll
  for (int i = 0; i < kLeaves * kElements; ++i) vectors[i] = addends[i / kElements][i % kElements];
  sum.add(vectors);
}

// Joins kCount leaves from kFirst on, recursively, so that few sums are live at a time.
template <class Batch, int kFirst, int kCount, class Addends>
__device__ __forceinline__ Batch join_in_turn(const Addends& addends) {
  Batch sums;
  if constexpr (kCount == 1) {
    sums.start(addends[kFirst]);
  } else {
    sums = join_in_turn<Batch, kFirst, kCount / 2>(addends);
    sums.add(join_in_turn<Batch, kFirst + kCount / 2, kCount / 2>(addends));
  }
  return sums;
}

// Adds up kLeaves neighbouring leaves of V columns, and joins them.
template <class Acc, int kLeaves, int kElements, class Element, int V>
__device__ __forceinline__ Lanes<Element, Acc, V> join_leaves(const Vector<Element, V> (&x)[kLeaves][kElements]) {
  using Batch = Lanes<Element, Acc, V>;
  if constexpr (Batch::kOrderFree) {
    Batch sum;
    sum.clear();
    add_leaves(sum, x);
    return sum;
  } else {
    const auto& addends = resolve(x);
    if constexpr (sizeof(Batch) > 32) return join_in_turn<Batch, 0, kLeaves>(addends);
    Batch lanes[kLeaves];
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) lanes[l].start(addends[l]);
    return join_lanes(lanes);
  }
}

// Loads the elements of column_leaves() in nested dims.
template <int V, int kElements, int kLeaves, int kInner, class ColumnSource, class Source, class Acc, class Place>
__device__ __forceinline__ void load_leaves(Vector<typename Source::Element, V> (&x)[kLeaves][kElements],
                                            const Args<Source, Acc>& a, const ColumnSource& source,
                                            const ColumnPiece<Place>& piece, int first, int left,
                                            const Stride<kInner, Place>& next_in_lane, const Stride<kInner, Place>& next_leaf) {
  const auto load = [&](int l, int d, Place offset) {
    x[l][d] = source.template load_if<V>(l + d * kLanes < left, piece.place + offset);
  };
  const auto cursor = [&](int e) { return a.reduced.template cursor<kInner>(piece.first + first + e); };
  if constexpr (kLeaves == 1) {
    Cursor at = cursor(0);
#pragma unroll
    for (int d = 0; d < kElements; ++d, next_in_lane.move(at)) load(0, d, at.offset);
  } else {
#pragma unroll
    for (int d = 0; d < kElements; ++d) {
      Cursor at = cursor(d * kLanes);
#pragma unroll
      for (int l = 0; l < kLeaves; ++l, next_leaf.move(at)) load(l, d, at.offset);
    }
  }
}

// Joins kLeaves neighbouring leaves of V columns, with up to kElements elements per leaf. All loads are in flight at once.
// `source`: the columns', as of_outputs() gives it.
template <int V, int kElements, int kLeaves, Walk walk, class ColumnSource, class Source, class Acc>
__device__ __forceinline__ Lanes<typename Source::Element, Acc, V> column_leaves(
    const Args<Source, Acc>& a, const ColumnSource& source, const ColumnPiece<typename Source::Place>& piece, int leaf) {
  using Element = typename Source::Element;
  const int first = leaf_start(leaf), left = min(piece.length - first, kChunk);
  Vector<Element, V> x[kLeaves][kElements];
  if (walk == Walk::linear && left > kLeaves - 1 + (kElements - 1) * kLanes) {  // the usual case: all elements exist
    const auto at = piece.place + a.template element<walk>(first);
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
      for (int d = 0; d < kElements; ++d)
        x[l][d] = load_part<V, true>(source, true, at + a.template element<walk>(l + d * kLanes));
    }
  } else if (walk == Walk::nested && a.reduced.moves_in_two()) {
    load_leaves(x, a, source, piece, first, left, a.next_in_lane.in_two(), a.next_leaf.in_two());
  } else if (walk == Walk::nested && a.reduced.moves()) {
    load_leaves(x, a, source, piece, first, left, a.next_in_lane, a.next_leaf);
  } else {
    const int64_t origin = walk == Walk::nested ? piece.first : 0;
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
      for (int d = 0; d < kElements; ++d) {
        const int e = l + d * kLanes;
        x[l][d] = source.template load_if<V>(e < left, piece.place + a.template element<walk>(origin + first + e));
      }
    }
  }
  return join_leaves<Acc>(x);
}

// Takes batch number `index` of a thread: joins it as carry() does, or adds it at once if the order is free. After the last
// batch, `batch` is the sum of all.
template <int kLevels, class Batch>
__device__ __forceinline__ void take_batch(Batch (&waiting)[kLevels], Batch& batch, int index) {
  if constexpr (Batch::kOrderFree) {
    if (index > 0) batch.add(waiting[0]);
    waiting[0] = batch;
  } else {
    carry(waiting, batch, index);
  }
}

// Joins a warp's leaves of the same columns, which threads `width` apart hold.
template <class Batch>
__device__ __forceinline__ void join_leaves_of_warp(Batch& batch, int width) {
  for (int mask = width; mask < kWarp; mask *= 2) {
#pragma unroll
    for (auto& sum : batch.sum) sum = sum + shuffle_xor(sum, mask);
  }
}

// A warp reads `warp_columns` threads side by side. Its other threads take further leaves of the same columns, and so do the
// other warps, and each warp again, unit after unit. A unit's values are joined across the warp and go to slots in shared
// memory, where the values of each column are joined at the end.
//
// A thread takes kBatches batches (a power of two) of kLoads / kElements leaves, with one batch at a time in flight. It keeps
// the sums that wait for a neighbour, as a binary counter does, or one sum of integers, whose order is free. In nested dims a
// batch is a lot of code, so the loop is not unrolled, and the plan says how many batches there are, at most kBatches.
template <int V, int kElements, int kBatches, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp,
                                  (kPairBlocks<typename Source::Element, Lanes<typename Source::Element, Acc, V>, kBatches>))
    columns(const __grid_constant__ Args<Source, Acc> a) {
  using Batch = Lanes<typename Source::Element, Acc, V>;
  constexpr int kLeaves = kLoads / kElements;
  using LaneSum = typename Batch::LaneSum;
  __shared__ __align__(kLine) LaneSum memory[column_slots(V) * V];
  const LaneSums<LaneSum> slots{memory};
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  // All are powers of two, so that nothing is divided.
  const int width = a.warp_columns, log_width = __ffs(width) - 1, column = (lane & (width - 1)) * V, row = lane >> log_width;
  const int batches = walk == Walk::nested ? a.batches : kBatches, thread_leaves = batches * kLeaves;
  const int unit_leaves = (kWarp * thread_leaves) >> log_width, units = a.tiling.tile_leaves >> (__ffs(unit_leaves) - 1);
  wait_for_previous_kernel();
  allow_next_kernel();
  TileLoop loop;
  do {
    const Tile tile = loop.tile(a.tiling);
    const int outputs = static_cast<int>(tile.outputs), leaves = static_cast<int>(tile.leaves);
    const bool inside = column < outputs;
    ColumnPiece<typename Source::Place> piece;
    piece.first = leaf_start(tile.leaf);
    piece.length = static_cast<int>(min(a.length - piece.first, int64_t{1} << 30));
    const int64_t output = tile.output + (inside ? column : 0);
    piece.place = a.kept.at(output).in;
    const auto& source = of_outputs<V>(a.source, inside, piece.place, output);
    if (walk != Walk::nested) piece.place = piece.place + a.template element<Walk::linear>(piece.first);
#pragma unroll 1
    for (int unit = warp; unit < units; unit += warps) {
      const int leaf = unit * unit_leaves + row * thread_leaves;
      Batch batch;
      batch.clear();
      if (inside && leaf < leaves) {
        Batch waiting[levels_of(kBatches)];
#pragma unroll(walk == Walk::nested ? 1 : kBatches)
        for (int b = 0; b < batches; ++b) {
          if (leaf + b * kLeaves < leaves)
            batch = column_leaves<V, kElements, kLeaves, walk>(a, source, piece, leaf + b * kLeaves);
          else batch.clear();
          take_batch(waiting, batch, b);
        }
      }
      join_leaves_of_warp(batch, width);
      if (lane < width) slots.put(unit * width * V + column, batch.sum);
    }
    __syncthreads();
    // One thread per kSlotRun units of a column, if the block has so many threads.
    const int log_threads = __ffs(blockDim.x) - 1, log_outputs = __ffs(width * V) - 1, log_units = __ffs(units) - 1;
    const int log_parts = max(0, min(min(log_units - kLogSlotRun, log_threads - log_outputs), 5)),
              part_units = units >> log_parts;
    for (int base = 0; base < width * V << log_parts; base += blockDim.x) {
      const int i = base + threadIdx.x, c = i >> log_parts, begin = (i & ((1 << log_parts) - 1)) * part_units;
      Acc sum, waiting[levels_of(column_slots(V) >> kLogSlotRun)];
#pragma unroll 1
      for (int first = 0; first < part_units; first += kSlotRun) {
        Acc v[kSlotRun];
#pragma unroll
        for (int u = 0; u < kSlotRun; ++u)
          v[u] =
              c < outputs && first + u < part_units ? widened<Acc>(slots[(begin + first + u) * width * V + c]) : padding<Acc>();
        sum = join_neighbours(v);
        carry(waiting, sum, first >> kLogSlotRun);
      }
      sum = warp_join(sum, 1, 1 << log_parts);
      if (c < outputs && begin == 0)
        a.output.write_at(a.kept.at(tile.output + c), tile.partial + c * a.tiling.partial_output_stride, sum);
    }
  } while (loop.next(a.tiling));
}

template <class Batch>
constexpr int kThinBlocks = sizeof(Batch) > 64                         ? 1
                            : sizeof(Batch) > 32 && !Batch::kOrderFree ? 2
                                                                       : 3;

// Writes the sums of V neighbouring outputs. The first one is output `index`, at `place`.
template <class Source, class Acc, class Element, int V>
__device__ __forceinline__ void write_lanes(const Args<Source, Acc>& a, const Spot<typename Source::Place>& place,
                                            int64_t index, const Lanes<Element, Acc, V>& lanes) {
  Acc v[V];
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] = widened<Acc>(lanes.sum[j]);
  a.output.write_neighbours(place, V > 1 ? a.kept.dims[a.kept.rank - 1].out : 0, index, v);
}

// Outputs of at most kElements elements. A thread takes all elements of kCount runs of V outputs, with all loads in flight
// together.
template <int V, int kElements, int kCount, Walk walk, class Source, class Acc>
__device__ __forceinline__ void take_short(const Args<Source, Acc>& a, const Tile& tile) {
  const int outputs = static_cast<int>(tile.outputs), length = static_cast<int>(a.length);
  int column[kCount];
  Spot<typename Source::Place> places[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    column[i] = (i * blockDim.x + threadIdx.x) * V;
    places[i] = a.kept.at(tile.output + (column[i] < outputs ? column[i] : 0));
  }
  typename Source::Place at[kElements];
  const auto move = [&](auto c, const auto& next) {
#pragma unroll
    for (int e = 0; e < kElements; ++e, next.move(c)) at[e] = c.offset;
  };
  if (walk == Walk::nested && a.reduced.moves_in_two()) {
    move(a.reduced.template cursor<1>(0), a.next_leaf.in_two());
  } else if (walk == Walk::nested && a.reduced.moves()) {
    move(a.reduced.template cursor<kInnerDims>(0), a.next_leaf);
  } else {
#pragma unroll
    for (int e = 0; e < kElements; ++e) at[e] = a.template element<walk>(e);
  }
  Vector<typename Source::Element, V> x[kCount][kElements][1];
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto& source = of_outputs<V>(a.source, column[i] < outputs, places[i].in, tile.output + column[i]);
      x[i][e][0] = source.template load_if<V>(column[i] < outputs && e < length, places[i].in + at[e]);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (column[i] >= outputs) break;
    write_lanes(a, places[i], tile.output + column[i], join_leaves<Acc>(x[i]));
  }
}

// Outputs of up to kLanes elements, so every element is a leaf. A thread takes all elements of V outputs, with kLoads leaves at
// a time in flight, and joins them as columns() does.
template <int V, Walk walk, class Source, class Acc>
__device__ __forceinline__ void take_long(const Args<Source, Acc>& a, const Tile& tile) {
  const int length = static_cast<int>(a.length), column = threadIdx.x * V;
  if (column >= tile.outputs) return;
  const auto place = a.kept.at(tile.output + column);
  const ColumnPiece<typename Source::Place> piece{place.in, 0, length};
  const auto& source = of_outputs<V>(a.source, true, place.in, tile.output + column);
  Lanes<typename Source::Element, Acc, V> batch, waiting[levels_of(kLanes / kLoads)];
#pragma unroll 1
  for (int leaf = 0; leaf < a.tiling.tile_leaves; leaf += kLoads) {
    if (leaf < length) batch = column_leaves<V, 1, kLoads, walk>(a, source, piece, leaf);
    else batch.clear();
    take_batch(waiting, batch, leaf / kLoads);
  }
  write_lanes(a, place, tile.output + column, batch);
}

// A thread takes all elements of kRuns runs of V outputs. An output has at most kElements elements: up to kLoads, or kLanes.
template <int V, int kElements, int kRuns, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp, (kThinBlocks<Lanes<typename Source::Element, Acc, V>>))
    thin(const __grid_constant__ Args<Source, Acc> a) {
  wait_for_previous_kernel();
  allow_next_kernel();
  TileLoop loop;
  do {
    const Tile tile = loop.tile(a.tiling);
    if constexpr (kElements > kLoads) {
      take_long<V, walk>(a, tile);
    } else {
      take_short<V, kElements, kRuns, walk>(a, tile);
    }
  } while (loop.next(a.tiling));
}

}  // namespace gpureduce::cuda
