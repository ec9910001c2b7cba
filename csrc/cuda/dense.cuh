// Dense rows: the common case, with as little as can be between a launch and its loads, and after them.
// Where a cache holds the input, that is most of the time: 2^22 float32 take 4.1 us, and took 5.0 through the rows kernel.
#pragma once

#include "cluster.cuh"
#include "shifted.cuh"

namespace gpureduce::cuda {

constexpr int kDenseRun = kMaxDenseUnits / kWarp;  // sums of units that a thread joins

template <class Source, class Acc>
struct DenseArgs {
  Source source;
  int64_t length, pitch, result_pitch;  // of rows, unless their dims are nested
  uint32_t rows, splits;
  int32_t row_units, tile_units;
  Output<Acc> output;
  Nest<Source::kRank> kept, reduced;
  Stride next_in_lane;  // where two dims are reduced
  InputSpan input;

  __device__ __forceinline__ Offsets place(uint32_t row) const {
    if (kept.rank > 1) return kept.at(row);
    return {row * pitch, row * result_pitch};
  }
};

// A unit of a row: row_groups() groups of 32 * V neighbouring leaves from element `first` on. All of their elements are there,
// or with kWhole false, those before the row's end. kNested: a row's elements lie in two nested dims, in whole vectors.
template <int V, int kElements, bool kNested, bool kWhole, class Source, class Acc>
__device__ __forceinline__ Acc dense_elements(const DenseArgs<Source, Acc>& a, int64_t row, int64_t first) {
  using Element = typename Source::Element;
  constexpr int kCount = row_groups(V, kElements);
  const int64_t begin = first + threadIdx.x % kWarp * V;
  Vector<Element, V> x[kCount][kElements];
  if constexpr (kNested) {
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
      Cursor at = a.reduced.cursor(begin + g * kWarp * V);
#pragma unroll
      for (int d = 0; d < kElements; ++d, a.next_in_lane.move(at)) {
        x[g][d] = load_part<V, kWhole>(a.source, begin + g * kWarp * V + d * kLanes + V <= a.length, row + at.offset);
      }
    }
  } else {
    load_unit<kWhole>(x, a.source, row + begin, static_cast<int>(min(a.length - begin, int64_t{kChunk})));
  }
  RowLanes<Element, Acc, V> lanes[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    lanes[g].start(x[g][0]);
#pragma unroll
    for (int d = 1; d < kElements; ++d) lanes[g].add(x[g][d]);
  }
  if constexpr (!kWhole && !kNested) {
    // The row's last vector may be no whole one. Its elements are the last of their lanes.
    if (const int tail = static_cast<int>(a.length % V)) {
#pragma unroll
      for (int g = 0; g < kCount; ++g) {
        const int64_t above = a.length - tail - begin - g * kWarp * V;
        if (above < 0 || above >= kElements * kLanes || above % kLanes != 0) continue;
#pragma unroll
        for (int j = 0; j < V - 1; ++j)
          if (j < tail) lanes[g].add(j, a.source.template load<1>(row + a.length - tail + j)[0]);
      }
    }
  }
  Acc values[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) values[g] = lanes[g].join();
  return warp_join_groups(values);
}

template <int V, int kElements, Walk walk, class Source, class Acc>
__device__ __forceinline__ Acc dense_unit(const DenseArgs<Source, Acc>& a, int64_t row, uint32_t unit) {
  if constexpr (walk == Walk::shifted) {
    const int64_t chunk = int64_t{unit} * kChunk;
    if constexpr (kElements < kDepth)
      return short_chunk<V, kElements, kElements / 2, Acc>(a.source, a.input, a.length, row, chunk);
    else if (is_short_chunk(a.length - chunk)) return short_chunk<V, 2, 0, Acc>(a.source, a.input, a.length, row, chunk);
    else return shifted_chunk<V, kElements, 0, Acc>(a.source, a.input, a.length, row, chunk);
  } else {
    constexpr int kUnit = row_unit(V, kElements), kChunkUnits = kLanes / kUnit;
    constexpr bool kNested = walk == Walk::nested;
    const int64_t first = int64_t{unit / kChunkUnits} * kChunk + unit % kChunkUnits * kUnit;
    if (first + (kElements - 1) * kLanes + kUnit <= a.length) return dense_elements<V, kElements, kNested, true>(a, row, first);
    return dense_elements<V, kElements, kNested, false>(a, row, first);
  }
}

// A shifted row's rest: a thread an element.
template <class Source, class Acc>
__device__ __forceinline__ Vector<typename Source::Element, 1> load_rest(const DenseArgs<Source, Acc>& a, int64_t row) {
  const int lane = threadIdx.x % kWarp, rest = row_rest(a.length);
  return a.source.template load_if<1>(lane < rest, row + a.length - rest + lane);
}

template <class Acc, class Element>
__device__ __forceinline__ Acc join_rest(const Vector<Element, 1>& x) {
  Lanes<Element, Acc, 1> lanes;
  lanes.start(x);
  return warp_join(lanes.join());
}

// A block takes some units of one row: its warps one after the other, and one warp joins what they come to. Splits of a row
// that are a cluster are joined by its first block.
template <int V, int kElements, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(dense_warps(walk) * kWarp, dense_blocks(walk))
    dense_rows(const __grid_constant__ DenseArgs<Source, Acc> a) {
  using Element = typename Source::Element;
  __shared__ Acc slots[kMaxDenseUnits];
  __shared__ Acc received[kMaxCluster];
  __shared__ uint64_t arrived;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const bool split = a.splits > 1;
  const uint32_t row = split ? blockIdx.z * kMaxDenseDepth + blockIdx.y : blockIdx.x, tile = split ? blockIdx.x : 0;
  if (row >= a.rows) return;
  const uint32_t first = tile * a.tile_units;
  const int units = min(a.tile_units, a.row_units - static_cast<int>(first));
  const Offsets place = a.place(row);
  const bool clustered = split && !a.output.partials;
  const Inbox<Acc> inbox{&arrived, received};
  // The last unit may be a shifted row's rest: the last warp loads it first.
  const bool has_rest = walk == Walk::shifted && first + units == a.row_units && row_rest(a.length) > 0;
  Vector<Element, 1> rest{};
  wait_for_previous_kernel();
  allow_next_kernel();
  if (clustered) inbox.open(tile == 0 ? a.splits : 0);
  if (has_rest && warp == warps - 1) rest = load_rest(a, place.in);
  for (int unit = warp; unit < units - has_rest; unit += warps) {
    const Acc v = dense_unit<V, kElements, walk>(a, place.in, first + unit);
    if (lane == 0) slots[unit] = v;
  }
  if (has_rest && warp == warps - 1) {
    const Acc v = join_rest<Acc>(rest);
    if (lane == 0) slots[units - 1] = v;
  }
  __syncthreads();
  if (warp > 0) return;
  Acc run[kDenseRun];
#pragma unroll
  for (int i = 0; i < kDenseRun; ++i) run[i] = lane * kDenseRun + i < units ? slots[lane * kDenseRun + i] : padding<Acc>();
  const Acc v = warp_join(join_neighbours(run), 1, a.tile_units / kDenseRun);
  if (!clustered) {
    if (lane == 0) a.output.write_at(place.out, int64_t{row} * a.splits + tile, v);
    return;
  }
  inbox.wait_for_others();
  if (lane > 0) return;
  inbox.send(0, tile, v);
  if (tile > 0) return;
  inbox.wait();
  a.output.write_at(place.out, 0, inbox.join(0, a.splits, 1));
}

// Rows of a single unit: a warp each; of shifted ones, with the rest.
template <int V, int kElements, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(dense_warps(walk) * kWarp, dense_blocks(walk))
    dense_units(const __grid_constant__ DenseArgs<Source, Acc> a) {
  const uint32_t row = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const Offsets place = a.place(row);
  wait_for_previous_kernel();
  allow_next_kernel();
  const bool has_rest = walk == Walk::shifted && a.length > kChunk;
  Vector<typename Source::Element, 1> rest{};
  if (has_rest) rest = load_rest(a, place.in);
  Acc v = dense_unit<V, kElements, walk>(a, place.in, 0);
  if (has_rest) v = v + join_rest<Acc>(rest);
  if (threadIdx.x % kWarp == 0) a.output.write_at(place.out, row, v);
}

// Short rows, every element of which is a leaf: kWidth neighbouring threads a row, a vector each, and 32 / kWidth rows side by
// side; or kGroups times 32 vectors a row. A thread has its vectors of several rows in flight, and then the values change
// hands, so that each shuffle joins two rows at once.
template <int V, int kWidth, int kGroups, class Source, class Acc>
__global__ void __launch_bounds__(kMaxRowWarps* kWarp, 2) flat_rows(const __grid_constant__ DenseArgs<Source, Acc> a) {
  using Element = typename Source::Element;
  constexpr int kCount = flat_loads(V * sizeof(Element), kGroups), kBatch = kWidth < kCount ? kWidth : kCount;
  constexpr int kSide = kWarp / kWidth, kRows = kCount / kGroups * kSide;
  static_assert(kGroups == 1 || (kWidth == kWarp && kGroups <= kCount));
  const int lane = threadIdx.x % kWarp, e = lane % kWidth * V, length = static_cast<int>(a.length);
  const uint32_t first = (blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp) * kRows;
  wait_for_previous_kernel();
  allow_next_kernel();
  if (first >= a.rows) return;
  const uint32_t mine = first + lane / kWidth;
  Vector<Element, V> x[kCount];
  const auto load = [&](auto place) {  // the offset of a row, so many below the thread's first
#pragma unroll
    for (int i = 0; i < kCount; i += kGroups) {
      const int below = i / kGroups * kSide;
      const int64_t begin = place(below) + e;
      for_constants(std::make_integer_sequence<int, kGroups>{}, [&](auto g) {
        constexpr int kBeyond = decltype(g)::value * kWarp * V;
        x[i + decltype(g)::value] = a.source.template load_if<V, kBeyond>(mine + below < a.rows && e + kBeyond < length, begin);
      });
    }
  };
  if (a.kept.rank > 1) {
    load([&](int below) { return a.kept.at(mine + below < a.rows ? mine + below : 0).in; });
  } else {
    const int64_t begin = mine * a.pitch;
    load([&](int below) { return begin + below * a.pitch; });
  }
#pragma unroll
  for (int i = 0; i < kCount; i += kBatch) {
    Acc v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      RowLanes<Element, Acc, V> lanes;
      lanes.start(x[i + b]);
      v[b] = lanes.join();
    }
    const Acc sum = warp_join(warp_transpose_join<kBatch, kWidth>(v), 1, kGroups);
    const uint32_t row = first + (i + lane % kBatch) / kGroups * kSide + lane / kWidth;
    if (lane % kWidth < kBatch && lane % kGroups == 0 && row < a.rows) a.output.write_at(a.place(row).out, row, sum);
  }
}

}  // namespace gpureduce::cuda
