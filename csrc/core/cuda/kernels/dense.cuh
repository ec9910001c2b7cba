// Kernels of rows, in any dims. dense_rows() does as little as possible before and after its loads: if a cache holds the input,
// that is most of its time. flat_rows() takes short rows, several per warp.
//
// For example 100 rows of 1500 float32, with V = 4 and kElements = 8. A unit is 128 leaves, so a row has 4 units, and a block
// of 4 warps takes a row. Thread 0 of warp 0 loads elements 0-3, 512-515 and 1024-1027; its other five loads are beyond the
// row's end and predicated off. It adds these as lanes 0-3 and joins the four. The warp joins its 32 threads through shuffles,
// and puts the sum of leaves 0-127 into shared memory. Warps 1 to 3 do the same with leaves 128-255, 256-383 and 384-511. After
// a barrier warp 0 joins the four sums, and its thread 0 writes the result.
#pragma once

#include "../load/shifted.cuh"
#include "../tree/cluster.cuh"

namespace gpureduce::cuda {

constexpr int kDenseRun = kMaxDenseUnits / kWarp;  // sums of units that a thread joins

template <int V, class Element>
constexpr int kRegisterBytes = register_bytes(V, sizeof(Element), has_one_input<Element>);

template <class Source, class Acc>
struct DenseArgs {
  // Converted elements may form more than 2^32 rows, or rows of more than 2^32 units.
  using Count = std::conditional_t<is_converted<Source>, int64_t, uint32_t>;

  using Place = typename Source::Place;

  Source source;
  Place pitch;  // from row to row, unless rows are in nested dims
  Count rows;
  uint8_t warps;              // per block
  uint8_t log_threads;        // flat rows: log2 of a row's loads, width * groups
  bool row_per_warp, nested;  // one warp takes a whole row; rows are in nested dims
  int64_t length, result_pitch;
  Output<Acc, typename Source::Element> output;
  Count row_units;
  uint32_t splits;
  int32_t tile_units;
  Nest<Source::kRank, Place> kept, reduced;
  Stride<kInnerDims, Place> next;  // in nested dims, to a thread's next element: of its leaf, or of its flat row
  InputSpan input;
  Stride<kInnerDims, Place> next_row;  // flat rows: from a thread's row to its next row

  __device__ __forceinline__ Spot<Place> place(Count row) const {
    if (nested) return kept.at(row);
    return {pitch * row, row * result_pitch};
  }

  template <Walk walk>
  __device__ __forceinline__ Place element(int64_t index) const {
    return element_place<walk>(source, reduced, index);
  }
};

// The sum of a unit of a row: row_groups() groups of 32 * V neighbouring leaves from element `first` on. kWhole: all elements
// exist; otherwise only those before the row's end. In nested dims the row's end cuts no vector. `source`: the row's, as
// of_outputs() gives it.
template <int V, int kElements, Walk walk, bool kWhole, class RowSource, class Source, class Acc>
__device__ __forceinline__ Acc dense_elements(const DenseArgs<Source, Acc>& a, const RowSource& source,
                                              typename Source::Place row, int64_t first) {
  using Element = typename Source::Element;
  constexpr int kCount = row_groups(V, kElements, kRegisterBytes<V, Element>);
  const int64_t begin = first + threadIdx.x % kWarp * V;
  const int left = static_cast<int>(min(a.length - begin, int64_t{kChunk}));
  Vector<Element, V> x[kCount][kElements];
  if constexpr (walk == Walk::nested) {
    load_nested<kWhole>(x, source, a.reduced, a.next.in_two(), row, begin, left);
  } else if constexpr (walk == Walk::deep) {
    load_deep<kWhole>(x, source, a.reduced, a.next, row, begin, left);
  } else if constexpr (walk == Walk::linear) {
    static_assert(V == 1);
    // Each group's address is advanced from element to element: the addresses of a whole unit do not fit into the registers.
    const auto next = a.template element<walk>(kLanes);
    typename Source::Place at[kCount];
#pragma unroll
    for (int g = 0; g < kCount; ++g) at[g] = row + a.template element<walk>(begin + g * kWarp);
#pragma unroll
    for (int d = 0; d < kElements; ++d) {
#pragma unroll
      for (int g = 0; g < kCount; ++g) {
        x[g][d] = load_part<V, kWhole>(source, g * kWarp + d * kLanes < left, at[g]);
        at[g] = at[g] + next;
      }
    }
  } else {
    load_unit<kWhole>(x, source, row + beside(a.source, begin), left);
  }
  const auto& addends = resolve(x);
  RowLanes<Element, Acc, V> lanes[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    lanes[g].start(addends[g][0]);
#pragma unroll
    for (int d = 1; d < kElements; ++d) lanes[g].add(addends[g][d]);
  }
  if constexpr (!kWhole && V > 1 && walk == Walk::dense) {
    // The row's last vector may be partial. Its elements are the last of their lanes.
    if (const int tail = static_cast<int>(a.length % V)) {
#pragma unroll
      for (int g = 0; g < kCount; ++g) {
        const int64_t above = a.length - tail - begin - g * kWarp * V;
        if (above < 0 || above >= kElements * kLanes || above % kLanes != 0) continue;
#pragma unroll
        for (int j = 0; j < V - 1; ++j)
          if (j < tail) lanes[g].add(j, load_part<1, true>(source, true, row + beside(a.source, a.length - tail + j))[0]);
      }
    }
  }
  Acc values[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) values[g] = lanes[g].join();
  return warp_join_groups(values);
}

template <int V, int kElements, Walk walk, class RowSource, class Source, class Acc>
__device__ __forceinline__ Acc dense_unit(const DenseArgs<Source, Acc>& a, const RowSource& source, typename Source::Place row,
                                          typename DenseArgs<Source, Acc>::Count unit) {
  if constexpr (walk == Walk::shifted) {
    const int64_t chunk = int64_t{unit} * kChunk;
    static_assert(kElements == kDepth);
    if (is_short_chunk(a.length - chunk)) return short_chunk<V, 2, Acc>(a.source, a.input, a.length, row, chunk);
    else return shifted_chunk<V, kElements, Acc>(a.source, a.input, a.length, row, chunk);
  } else {
    constexpr int kUnit = row_unit(V, kElements, kRegisterBytes<V, typename Source::Element>), kChunkUnits = kLanes / kUnit;
    const int64_t first = int64_t{unit / kChunkUnits} * kChunk + unit % kChunkUnits * kUnit;
    if constexpr (walk != Walk::deep)  // deep walks are so much code that only the general case is compiled
      if (first + (kElements - 1) * kLanes + kUnit <= a.length)
        return dense_elements<V, kElements, walk, true>(a, source, row, first);
    return dense_elements<V, kElements, walk, false>(a, source, row, first);
  }
}

// Loads a row's rest, the few elements beyond its last whole chunk: one per thread.
template <Walk walk, class RowSource, class Source, class Acc>
__device__ __forceinline__ Vector<typename Source::Element, 1> load_rest(const DenseArgs<Source, Acc>& a,
                                                                         const RowSource& source, typename Source::Place row) {
  const int lane = threadIdx.x % kWarp, rest = row_rest(a.length);
  return source.template load_if<1>(lane < rest, row + a.template element<walk>(a.length - rest + lane));
}

template <class Acc, class Element>
__device__ __forceinline__ Acc join_rest(const Vector<Element, 1>& x) {
  Lanes<Element, Acc, 1> lanes;
  lanes.start(x);
  return warp_join(lanes.join());
}

// The block's number in a grid of whole rows, which may need more blocks than a grid has along x.
template <class Count>
__device__ __forceinline__ Count whole_rows_block() {
  if constexpr (sizeof(Count) > 4) return Count{blockIdx.y} * gridDim.x + blockIdx.x;
  else return blockIdx.x;
}

// A warp takes a row of one unit, and the rest of a shifted row.
template <int V, int kElements, Walk walk, class Source, class Acc>
__device__ __forceinline__ void take_row(const DenseArgs<Source, Acc>& a) {
  using Count = typename DenseArgs<Source, Acc>::Count;
  const Count row = whole_rows_block<Count>() * static_cast<Count>(a.warps) + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const auto place = a.place(row);
  wait_for_previous_kernel();
  allow_next_kernel();
  const auto& source = of_outputs<1>(a.source, true, place.in, row);
  const bool has_rest = walk == Walk::shifted && a.length > kChunk;
  Vector<typename Source::Element, 1> rest{};
  if (has_rest) rest = load_rest<walk>(a, source, place.in);
  Acc v = dense_unit<V, kElements, walk>(a, source, place.in, 0);
  if (has_rest) v = v + join_rest<Acc>(rest);
  if (threadIdx.x % kWarp == 0) a.output.write_at(place, row, v);
}

// A block takes some units of one row. Its warps take them in turn, and warp 0 joins the units' sums. If the splits of a row
// are a cluster, its first block joins them.
template <int V, int kElements, Walk walk, class Source, class Acc>
__device__ __forceinline__ void take_units(const DenseArgs<Source, Acc>& a) {
  using Element = typename Source::Element;
  using Count = typename DenseArgs<Source, Acc>::Count;
  __shared__ Acc sums[kMaxDenseUnits];  // of the tile's units
  __shared__ Acc received[kMaxCluster];
  __shared__ uint64_t arrived;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = a.warps;
  const bool split = a.splits > 1;
  const Count row = split ? Count{blockIdx.z} * kMaxDenseDepth + blockIdx.y : whole_rows_block<Count>();
  const uint32_t tile = split ? blockIdx.x : 0;
  if (row >= a.rows) return;
  const Count first = Count{tile} * a.tile_units;
  const int units = static_cast<int>(min(static_cast<Count>(a.tile_units), a.row_units - first));
  const bool last = first + units == a.row_units;
  const auto place = a.place(row);
  const bool clustered = split && !a.output.partial;
  const Inbox<Acc> inbox{&arrived, received};
  // The last unit may be the row's rest, a few elements beyond the last whole chunk. The last warp loads it first.
  constexpr bool kHasRest = walk == Walk::shifted || (V == 1 && kElements == kDepth);
  const bool has_rest = kHasRest && last && row_rest(a.length) > 0;
  Vector<Element, 1> rest{};
  wait_for_previous_kernel();
  allow_next_kernel();
  if (clustered) inbox.open(tile == 0 ? a.splits : 0);
  const auto& source = of_outputs<1>(a.source, true, place.in, row);
  if constexpr (kHasRest)
    if (has_rest && warp == warps - 1) rest = load_rest<walk>(a, source, place.in);
  for (int unit = warp; unit < units - has_rest; unit += warps) {
    const Acc v = dense_unit<V, kElements, walk>(a, source, place.in, first + unit);
    if (lane == 0) sums[unit] = v;
  }
  if constexpr (kHasRest) {
    if (has_rest && warp == warps - 1) {
      const Acc v = join_rest<Acc>(rest);
      if (lane == 0) sums[units - 1] = v;
    }
  }
  __syncthreads();
  if (warp > 0) return;
  Acc run[kDenseRun];
#pragma unroll
  for (int i = 0; i < kDenseRun; ++i) run[i] = lane * kDenseRun + i < units ? sums[lane * kDenseRun + i] : padding<Acc>();
  const Acc v = warp_join(join_neighbours(run), 1, a.tile_units / kDenseRun);
  if (!clustered) {
    if (lane == 0) a.output.write_at(place, int64_t{row} * a.splits + tile, v);
    return;
  }
  inbox.wait_for_others();
  if (lane > 0) return;
  inbox.send(0, tile, v);
  if (tile > 0) return;
  inbox.wait();
  a.output.write_at(place, 0, inbox.join(a.splits));
}

template <class Source, class Acc, int V>
constexpr int sum_bytes = V * sizeof(Lane<typename Source::Element, Acc>);

template <int V, int kElements, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(dense_warps(walk, sum_bytes<Source, Acc, V>) * kWarp,
                                  (dense_blocks(walk, sum_bytes<Source, Acc, V>)))
    dense_rows(const __grid_constant__ DenseArgs<Source, Acc> a) {
  constexpr bool kChunkUnits = row_unit(V, kElements, kRegisterBytes<V, typename Source::Element>, walk) == kLanes;
  if constexpr (kElements < kDepth && kChunkUnits) {  // rows shorter than a chunk: they are one unit
    take_row<V, kElements, walk>(a);
  } else {
    if constexpr (kElements == 2 || kChunkUnits)  // other rows have several units
      if (a.row_per_warp) return take_row<V, kElements, walk>(a);
    take_units<V, kElements, walk>(a);
  }
}

// Joins each of a thread's N values across 1 << log_width neighbouring threads; groups of 1 << kLog of these are joined
// already. Calls write(value, index) for each result, where `index` is the number of its load. While there are several values,
// two threads share the work, as in warp_transpose_join().
template <int kLog = 0, int kLogTurned = 0, int N, class Acc, class Write>
__device__ __forceinline__ void join_loads(const Acc (&v)[N], int log_width, const Write& write) {
  const int lane = threadIdx.x % kWarp;
  if (kLog == 5 || log_width == kLog) {
    const int within = lane & ((1 << kLogTurned) - 1);
    if ((lane & ((1 << kLog) - 1)) > within) return;
#pragma unroll
    for (int i = 0; i < N; ++i) write(v[i], (i << kLogTurned) + within);
  } else if constexpr (kLog < 5 && N > 1) {
    const bool odd = lane & 1 << kLog;
    Acc half[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      Acc keep = v[2 * i], give = v[2 * i + 1];
      exchange_if(odd, keep, give);
      half[i] = keep + shuffle_xor(give, 1 << kLog);
    }
    join_loads<kLog + 1, kLogTurned + 1>(half, log_width, write);
  } else if constexpr (kLog < 5) {
    const Acc both[1] = {v[0] + shuffle_xor(v[0], 1 << kLog)};
    join_loads<kLog + 1, kLogTurned>(both, log_width, write);
  }
}

// Joins the elements of each load, which are all leaves, to one value per load.
template <class Acc, class Source, int V, int kCount>
__device__ __forceinline__ void join_vectors(const Vector<typename Source::Element, V> (&x)[1][kCount], Acc (&v)[kCount]) {
  const auto& addends = resolve(x);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    RowLanes<typename Source::Element, Acc, V> lanes;
    lanes.start(addends[0][i]);
    v[i] = lanes.join();
  }
}

// For rows that are not dense: calls f(cursor, move). The cursor is at element `e` of a row, and move(cursor) advances it by
// `next` elements, as a.next does.
template <class Source, class Acc, class F>
__device__ __forceinline__ void with_cursor(const DenseArgs<Source, Acc>& a, int e, int next, const F& f) {
  if (a.reduced.rank == 2 && a.reduced.moves()) {
    f(a.reduced.template cursor<1>(e), [stride = a.next.in_two()](auto& c) { stride.move(c); });
  } else if (a.reduced.rank > 2 && a.reduced.moves()) {
    f(a.reduced.template cursor<kInnerDims>(e), [&](auto& c) { a.next.move(c); });
  } else {
    struct Linear {
      int e;
      typename Source::Place offset;
    };
    constexpr Walk kWalk = is_converted<Source> ? Walk::nested : Walk::linear;
    f(Linear{e, a.template element<kWalk>(e)}, [&](Linear& c) { c = {c.e + next, a.template element<kWalk>(c.e + next)}; });
  }
}

// Rows of up to 32 loads. 1 << log_threads neighbouring threads take a row, one load each, so a warp takes several rows side by
// side.
template <int V, Walk walk, class Source, class Acc>
__device__ __forceinline__ void take_rows_of_loads(const DenseArgs<Source, Acc>& a) {
  using Element = typename Source::Element;
  constexpr bool kDense = walk == Walk::dense;
  constexpr int kCount = flat_loads(V * sizeof(Element), V, kDense, false, sizeof(Acc));
  const int log_width = a.log_threads, log_side = 5 - log_width, lane = threadIdx.x % kWarp;
  const uint32_t warp = blockIdx.x * static_cast<uint32_t>(a.warps) + threadIdx.x / kWarp, first = warp * kCount << log_side;
  if (first >= a.rows) return;
  const uint32_t thread_row = first + (lane >> log_width);
  const int e = (lane & ((1 << log_width) - 1)) * V;
  const bool inside = e < static_cast<int>(a.length);
  auto at = beside(a.source, e);  // the thread's place in a row
  if constexpr (!kDense) with_cursor(a, e, 0, [&](const auto& c, const auto&) { at = c.offset; });
  Vector<Element, V> x[1][kCount];
  const auto load = [&](auto place) {  // place(row): the offset of the thread's next row
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t row = thread_row + (i << log_side);
      const auto begin = place(row);
      x[0][i] = of_outputs<1>(a.source, row < a.rows, begin, row).template load_if<V>(inside && row < a.rows, begin + at);
    }
  };
  if (!kDense && a.nested && a.kept.moves()) {
    Cursor c = a.kept.template cursor<kInnerDims>(thread_row < a.rows ? thread_row : 0);
    load([&](uint32_t) {
      const auto offset = c.offset;
      a.next_row.move(c);
      return offset;
    });
  } else if (a.nested) {
    load([&](uint32_t row) { return a.kept.at(row < a.rows ? row : 0).in; });
  } else {
    auto next = a.pitch * thread_row;
    const auto step = a.pitch * (int64_t{1} << log_side);
    load([&](uint32_t) {
      const auto offset = next;
      next = next + step;
      return offset;
    });
  }
  Acc v[kCount];
  join_vectors<Acc, Source>(x, v);
  join_loads(v, log_width, [&](Acc sum, int load) {
    const uint32_t row = first + (load << log_side) + (lane >> log_width);
    if (row < a.rows) a.output.write_at(a.place(row), row, sum);
  });
}

// Rows of more than 32 loads. A warp takes a row, and has several groups of 32 loads in flight, of one row or of a few.
template <int V, Walk walk, class Source, class Acc>
__device__ __forceinline__ void take_rows_of_groups(const DenseArgs<Source, Acc>& a) {
  using Element = typename Source::Element;
  constexpr bool kDense = walk == Walk::dense;
  constexpr int kCount = flat_loads(V * sizeof(Element), V, kDense, true, sizeof(Acc)), kGroup = kWarp * V;
  const int log_groups = a.log_threads - 5, last_group = (1 << log_groups) - 1, lane = threadIdx.x % kWarp;
  const uint32_t warp = blockIdx.x * static_cast<uint32_t>(a.warps) + threadIdx.x / kWarp,
                 first = warp * (kCount >> log_groups);
  if (first >= a.rows) return;
  const int e = lane * V, length = static_cast<int>(a.length);
  Vector<Element, V> x[1][kCount];
  // place(row, next): where the row begins. `next`: it is not the row of the call before. `begin` and `move` find the row's
  // elements.
  const auto load = [&](auto place, const auto& begin, const auto& move) {
    auto c = begin;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t row = first + (i >> log_groups);
      const int group = i & last_group;
      if (i > 0 && group == 0) c = begin;
      const bool wanted = row < a.rows && e + group * kGroup < length;
      const auto at = place(row, i > 0 && group == 0);
      x[0][i] = of_outputs<1>(a.source, row < a.rows, at, row).template load_if<V>(wanted, at + c.offset);
      move(c);
    }
  };
  const auto load_rows = [&](auto place) {
    if constexpr (kDense) {
      struct Side { typename Source::Place offset; };
      load(place, Side{beside(a.source, e)}, [&](Side& c) { c.offset = c.offset + beside(a.source, kGroup); });
    } else {
      with_cursor(a, e, kGroup, [&](const auto& begin, const auto& move) { load(place, begin, move); });
    }
  };
  if (!a.nested) {
    load_rows([&](uint32_t row, bool) { return a.pitch * row; });
  } else if (a.kept.moves()) {
    Cursor c = a.kept.template cursor<kInnerDims>(first);
    load_rows([&](uint32_t, bool next) {
      if (next) a.next_row.move(c);
      return c.offset;
    });
  } else {
    load_rows([&](uint32_t row, bool) { return a.kept.at(row < a.rows ? row : 0).in; });
  }
  Acc v[kCount];
  if constexpr (engine_of<Source> == Engine::reduced) {  // its maps may be slow, so empty groups are skipped
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      v[i] = padding<Acc>();
      if ((i & last_group) * kGroup < length) {
        RowLanes<Element, Acc, V> lanes;
        lanes.start(x[0][i]);
        v[i] = lanes.join();
      }
    }
  } else {
    join_vectors<Acc, Source>(x, v);
  }
  const Acc sum = warp_join(warp_transpose_join<kCount>(v), 1, 1 << log_groups);
  const uint32_t row = first + (lane % kCount >> log_groups);
  if (lane < kCount && (lane & last_group) == 0 && row < a.rows) a.output.write_at(a.place(row), row, sum);
}

// Short rows: every element is a leaf. A thread joins the elements of each of its loads. Then shuffles join the threads, and
// each shuffle serves two loads at once.
//
// For example rows of 100 bfloat16 in loads of 8 bytes, 4 elements each: a row is 25 loads, so 32 threads take it, and a thread
// has loads of 8 rows in flight. Rows of 10 float32 in loads of 8 bytes are 5 loads: 8 threads take a row, and a warp takes 4
// rows side by side. Rows of 500 bfloat16 are 125 loads: a warp takes a row in 4 groups of 32 loads, with 2 rows in flight.
template <int V, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxRowWarps* kWarp, 2) flat_rows(const __grid_constant__ DenseArgs<Source, Acc> a) {
  wait_for_previous_kernel();
  allow_next_kernel();
  if constexpr (flat_groups(V * sizeof(typename Source::Element), V) > 1)
    if (a.log_threads > 5) return take_rows_of_groups<V, walk>(a);
  take_rows_of_loads<V, walk>(a);
}

}  // namespace gpureduce::cuda
