// Segments whose elements lie one stride apart, each reduced to one number. Where many short ones begin in a tile, the block
// copies their elements into shared memory first, with wide loads, and then a few threads take a segment each. Few short ones
// are a warp's each; and warps take long ones by units of their chunks, whose sums a second kernel joins.
#pragma once

#include "../shifted.cuh"
#include "tiles.cuh"

namespace gpureduce::cuda {

constexpr int kRowThreads = 256;  // of a block
constexpr int kRowWeight = 4;
constexpr int kMostRowTile = 2 * kChunk, kRowTileBytes = 1 << 15;
constexpr int kLeastRowTile = 1024;
constexpr int kShort = kLanes;                    // elements of a segment all of which are leaves
constexpr int kDirect = 2 * kRowThreads / kWarp;  // short segments of a tile that are not worth a copy
constexpr int kCopies = 8;                        // vectors that a thread copies at once
constexpr int kRowBatch = 8;                      // elements that a thread joins at once
constexpr int kRowLevels = 7;                     // of a short segment's batches
constexpr int kRowRounds = 4;                     // of segments, that a thread loads at once
constexpr uint16_t kNotShort = UINT16_MAX;
static_assert(kRowBatch << (kRowLevels - 1) == kShort);

// Positions of a tile, at most: as many elements as there is shared memory for.
GPUREDUCE_HOST_DEVICE constexpr int row_tile(int size) {
  return kRowTileBytes / size < kMostRowTile ? kRowTileBytes / size : kMostRowTile;
}
constexpr int row_items(int tile) { return tile / (kShort + 1 + kRowWeight) + tile / kChunk + 3; }

template <class Source, class Acc>
struct SegmentRowArgs {
  Source source;
  int64_t stride;
  SegmentTiles tiles;
  Nest<Source::kRank> kept;  // of rows
  SegmentOutput<Acc> output;
  Acc* partials;

  // Where element `index` of a row is, and where a segment's result goes.
  __device__ __forceinline__ int64_t element(int64_t row, int64_t index) const {
    if constexpr (is_any<Source>) index *= stride;
    return kept.at(row).in + index;
  }
  __device__ __forceinline__ int64_t result(int64_t row, int64_t number) const {
    return kept.at(row).out + number * tiles.result_pitch;
  }
};

// Where a chunk's sum stands, of a segment of several. A segment's last chunk may begin near the next segment, and so has a
// place beside the others'.
__device__ __forceinline__ int64_t chunk_slot(const SegmentTiles& t, int64_t row, int64_t begin, int64_t chunk,
                                              int64_t chunks) {
  return 2 * (row * (t.length / kChunk + 1) + begin / kChunk + chunk) + (chunk == chunks - 1);
}

__device__ __forceinline__ int64_t chunks_of(int64_t length) { return (length + kChunk - 1) / kChunk; }

// The sum of kUnit lanes of a chunk, by a warp: of the chunk's first `length` elements. kWhole: they are 4096.
template <int kUnit, bool kWhole, class Source, class Acc>
__device__ __forceinline__ Acc plain_unit(const SegmentRowArgs<Source, Acc>& a, int64_t begin, int unit, int length) {
  const int64_t stride = is_any<Source> ? a.stride : 1;
  const int first = unit * kUnit + threadIdx.x % kWarp;
  Vector<typename Source::Element, 1> x[kDepth][kUnit / kWarp];
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
#pragma unroll
    for (int g = 0; g < kUnit / kWarp; ++g) {
      const int e = d * kLanes + g * kWarp;
      x[d][g] = load_part<1, kWhole>(a.source, first + e < length, begin + (first + e) * stride);
    }
  }
  Acc v[kUnit / kWarp];
#pragma unroll
  for (int g = 0; g < kUnit / kWarp; ++g) {
    v[g] = addend<Acc>(x[0][g][0]);
#pragma unroll
    for (int d = 1; d < kDepth; ++d) v[g] = v[g] + addend<Acc>(x[d][g][0]);
  }
  return warp_join_groups(v);
}

// The same in vectors, whatever the address: a thread reads aligned ones, `shift` elements before its own, and the sums move
// down (../shifted.cuh). The first thread's vectors begin with elements of the lanes before; the unit's last `shift` lanes are
// read one by one in their stead. The elements of all these vectors are the row's.
template <bool kWhole, class Source, class Acc>
__device__ __forceinline__ Acc shifted_unit(const SegmentRowArgs<Source, Acc>& a, int64_t begin, int unit, int length) {
  using Element = typename Source::Element;
  constexpr int V = kGranule / sizeof(Element), kUnit = kWarp * V;
  const int lane = threadIdx.x % kWarp, shift = a.source.template misalignment<V>(begin);
  const int first = unit * kUnit + lane * V - shift, last = (unit + 1) * kUnit - shift + lane;
  Vector<Element, V> x[kDepth];
  Vector<Element, 1> y[kDepth];
  for_constants(std::make_integer_sequence<int, kDepth>{}, [&](auto d) {
    constexpr int kBeyond = decltype(d)::value * kLanes;
    x[d] = load_part<V, kWhole, kBeyond>(a.source, first + kBeyond < length, begin + first);
  });
  if (shift > 0) {
    for_constants(std::make_integer_sequence<int, kDepth>{}, [&](auto d) {
      constexpr int kBeyond = decltype(d)::value * kLanes;
      y[d] = a.source.template load_if<1, kBeyond>(lane < shift && last + kBeyond < length, begin + last);
    });
  }
  Lanes<Element, Acc, V> lanes;
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    if constexpr (!kWhole) {
      const int left = length - first - d * kLanes;
      if (left < V) x[d] = keep(x[d], 0, max(left, 0));
    }
    if (d == 0) lanes.start(x[d]);
    else lanes.add(x[d]);
  }
  if (shift > 0) {
    Lanes<Element, Acc, 1> rest;
    rest.start(y[0]);
#pragma unroll
    for (int d = 1; d < kDepth; ++d) rest.add(y[d]);
#pragma unroll
    for (int j = 0; j < V - 1; ++j) {
      const auto from_last = shuffle(rest.sum[0], j);
      lanes.sum[j] = choose(lane == 0 && j < shift, from_last, lanes.sum[j]);
    }
    if constexpr (!Lanes<Element, Acc, V>::kOrderFree) move_down<1, V / 2>(&lanes, shift);
  }
  return warp_join(lanes.join());
}

// A chunk, whose units warps take.
struct RowItem {
  int64_t index, begin, length, chunk;  // the first three: of its segment
};

// Lanes of a unit.
template <class Source>
constexpr int row_unit_lanes =
    is_any<Source> ? kLanes / 4 : kWarp * kGranule / static_cast<int>(sizeof(typename Source::Element));

template <class Source, class Acc>
__device__ __forceinline__ Acc item_unit(const SegmentRowArgs<Source, Acc>& a, const RowItem& item, int unit) {
  constexpr int kUnit = row_unit_lanes<Source>;
  const int64_t from = item.begin + item.chunk * kChunk, begin = a.element(a.tiles.row_of(item.index), from);
  const int64_t rest = item.length - item.chunk * kChunk;
  const int length = static_cast<int>(min(rest, int64_t{kChunk}));
  if (unit * kUnit >= length) return padding<Acc>();
  if constexpr (!is_any<Source>) {
    constexpr int V = kGranule / sizeof(typename Source::Element);
    if (from >= V - 1 && from + length + V - 1 <= a.tiles.length) {  // no vector reaches out of the row
      return length == kChunk ? shifted_unit<true>(a, begin, unit, length) : shifted_unit<false>(a, begin, unit, length);
    }
  }
  return plain_unit<kUnit, false>(a, begin, unit, length);
}

// The sum of a segment of up to 32 * kCount elements, each of which is a leaf, by a warp.
template <int kCount, class Source, class Acc>
__device__ __forceinline__ Acc warp_sum(const SegmentRowArgs<Source, Acc>& a, int64_t begin, int length) {
  const int lane = threadIdx.x % kWarp;
  Vector<typename Source::Element, 1> x[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int e = i * kWarp + lane;
    x[i] = a.source.template load_if<1>(e < length, begin + (is_any<Source> ? e * a.stride : e));
  }
  Acc v[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = addend<Acc>(x[i][0]);
  return warp_join_groups(v);
}

// Elements in shared memory. A word is left out after each line, so that threads whose elements are whole lines apart do not
// meet in a bank.
template <class Element>
struct CopiedRow {
  static constexpr int kInLine = kLine / sizeof(Element), kGap = sizeof(Element) < 4 ? 4 / sizeof(Element) : 1;
  static constexpr int kBytes(int elements) { return (elements + (elements / kInLine + 1) * kGap) * sizeof(Element); }
  Element* memory;

  __device__ __forceinline__ Element& operator[](int i) const { return memory[i + i / kInLine * kGap]; }
  // A vector, which lies in one line.
  template <int V>
  __device__ __forceinline__ void put(int i, const Vector<Element, V>& x) const {
    if constexpr (sizeof(Element) < 4 && V > 1) {
#pragma unroll
      for (int w = 0; w < static_cast<int>(V * sizeof(Element) / 4); ++w)
        reinterpret_cast<uint32_t*>(&(*this)[i])[w] = x.word(w);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) (&(*this)[i])[j] = x[j];
    }
  }
};

// Joins the `length` elements from `begin` on, by groups of `width` neighbouring threads, each of which has a group's own
// segment: a thread takes a run of neighbours.
template <class Acc, class Element>
__device__ __forceinline__ Acc copied_sum(const CopiedRow<Element>& copied, int begin, int length, int width) {
  int run = kRowBatch;
  while (run * width < length) run *= 2;
  const int first = (threadIdx.x & (width - 1)) * run, count = min(length - first, run);
  const int batches = (count + kRowBatch - 1) / kRowBatch;
  Acc waiting[kRowLevels], v = padding<Acc>();
  for (int b = 0; b < batches; ++b) {
    Acc x[kRowBatch];
#pragma unroll
    for (int j = 0; j < kRowBatch; ++j) {
      const int e = b * kRowBatch + j;
      x[j] = e < count ? addend<Acc>(copied[begin + first + e]) : padding<Acc>();
    }
    v = join_neighbours(x);
    if (batches > 1) carry_up(waiting, v, b);
  }
  if (batches > 1) v = joined(waiting, batches, [](Acc& left, const Acc& right) { left = left + right; });
  return warp_join(v, 1, width);
}

template <class Source, class Acc>
__global__ void __launch_bounds__(kRowThreads, sizeof(Acc) > 8  ? 1
                                               : is_any<Source> ? 3
                                                                : 4)
    segment_rows(const __grid_constant__ SegmentRowArgs<Source, Acc> a) {
  using Element = typename Source::Element;
  constexpr int kTile = row_tile(sizeof(Element)), kSegments = kTile / kRowWeight, kItems = row_items(kTile);
  constexpr int kUnits = kLanes / row_unit_lanes<Source>, V = is_any<Source> ? 1 : kGranule / sizeof(Element);
  constexpr int kCopied = kTile + kShort;  // elements, at most
  static_assert(kItems <= kRowThreads && kTile / (kChunk + 1 + kRowWeight) < kMostLong);
  __shared__ __align__(kGranule) char memory[CopiedRow<Element>::kBytes(kCopied + 2 * V)];
  __shared__ uint16_t positions[kSegments];  // from the tile's own on
  __shared__ uint16_t lengths[kSegments];    // of short ones
  __shared__ RowItem items[kItems];          // of others
  __shared__ Acc sums[kItems * kUnits];
  __shared__ int32_t item_count, longs, larges;
  __shared__ int64_t large[kMostLong];
  const CopiedRow<Element> copied{reinterpret_cast<Element*>(memory)};
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  constexpr int kWarps = kRowThreads / kWarp;
  wait_for_previous_kernel();
  allow_next_kernel();
  const SegmentTiles& t = a.tiles;
  const auto write = [&](int64_t index, int64_t length, Acc v) {
    const int64_t row = t.row_of(index);
    Acc one[1] = {v};
    a.output.template write<is_any<Source>>(a.result(row, index - row * t.segments), length, one);
  };

  int64_t tile = t.first_tile(blockIdx.x, gridDim.x);
  const int64_t last_tile = t.first_tile(int64_t{blockIdx.x} + 1, gridDim.x);
  int64_t first = t.first_at(tile * t.tile);
  SegmentEnds next = t.ends(first - 1 + threadIdx.x);  // the first thread's is the one before the tile
  for (; tile < last_tile; ++tile) {
    const int64_t tile_begin = tile * t.tile, tile_end = tile_begin + t.tile;
    if (threadIdx.x == 0) item_count = longs = larges = 0;
    __syncthreads();

    // Enters the chunks of a segment that belong to the tile.
    const auto enter = [&](int64_t index, const SegmentPlace& s, int64_t chunk) {
      for (; chunk < chunks_of(s.length) && s.position + chunk * kChunk < tile_end; ++chunk) {
        const int at = atomicAdd(&item_count, 1);
        if (at < kItems) items[at] = {index, s.begin, s.length, chunk};
      }
    };
    // Enters the segment of a place, if it begins in the tile. Returns whether it does.
    const auto enter_place = [&](int place, const SegmentEnds& ends) {
      const int64_t index = first + place;
      if (index >= t.count() || place >= kSegments) return false;
      const SegmentPlace s = t.place(index, ends);
      if (s.position >= tile_end) return false;
      const bool is_short = s.length <= kShort;
      positions[place] = static_cast<uint16_t>(max(s.position - tile_begin, int64_t{0}));
      lengths[place] = is_short ? static_cast<uint16_t>(s.length) : kNotShort;
      if (!is_short) {
        atomicAdd(&longs, 1);
        enter(index, s, 0);
        if (s.length > kChunk) {
          const int at = atomicAdd(&larges, 1);
          if (at < kMostLong) large[at] = index;
        }
      }
      return true;
    };
    bool is_here = false;
    if (threadIdx.x > 0) {
      is_here = enter_place(threadIdx.x - 1, next);
    } else if (first > 0) {
      const SegmentPlace s = t.place(first - 1, next);
      enter(first - 1, s, max((tile_begin - s.position + kChunk - 1) / kChunk, int64_t{1}));
    }
    int here = __syncthreads_count(is_here);
    for (int all = kRowThreads - 1; here == all && here < kSegments; all += kRowRounds * kRowThreads) {
      SegmentEnds ends[kRowRounds];
      const int place = all + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kRowRounds; ++i) ends[i] = t.ends(first + place + i * kRowThreads);
#pragma unroll
      for (int i = 0; i < kRowRounds; ++i) {
        is_here = enter_place(place + i * kRowThreads, ends[i]);
        here += __syncthreads_count(is_here);
      }
    }
    next = t.ends(first + here - 1 + threadIdx.x);
    if (threadIdx.x == 0) t.note(tile, first, first + here, large, larges);

    // Where the tile's first segment is, and from there on where the others are.
    const int64_t row = t.row_of(first), number = first - row * t.segments;
    const int from = here > 0 ? positions[0] : 0, shorts = here - longs;
    const int64_t begin = min(max(tile_begin + from - t.position(row, number, 0), int64_t{0}), t.length);
    const bool one_row = t.rows == 1 || number + here <= t.segments;
    const bool copies = shorts > kDirect;
    int64_t row_begin = 0, span = 0;  // of those elements of a row that are in segments
    if (!one_row) {
      row_begin = min(max(t.offset(0), int64_t{0}), t.length);
      span = min(max(t.offset(t.segments), row_begin), t.length) - row_begin;
    }
    const auto place_of = [&](int place) {
      int at = positions[place] - from - place * kRowWeight;
      if (!one_row) at -= static_cast<int>((t.row_of(first + place) - row) * (t.length - span));
      return at;
    };
    int shift = 0;
    if (copies) {
      int end = place_of(here - 1) + (lengths[here - 1] == kNotShort ? 0 : lengths[here - 1]);
      end = min(max(end, 0), kCopied);
      if (one_row) end = static_cast<int>(min(int64_t{end}, t.length - begin));
      bool is_copied = false;
      if constexpr (!is_any<Source>) {
        is_copied = one_row;
        if (one_row) {
          const int64_t at = a.element(row, begin);
          shift = a.source.template misalignment<V>(at);
          const int head = min((V - shift) % V, end), vectors = (end - head) / V, tail = head + vectors * V;
          if (threadIdx.x < head) copied.template put<1>(shift + threadIdx.x, a.source.template load<1>(at + threadIdx.x));
          if (threadIdx.x < end - tail)
            copied.template put<1>(shift + tail + threadIdx.x, a.source.template load<1>(at + tail + threadIdx.x));
          for (int base = threadIdx.x; base < vectors; base += kCopies * kRowThreads) {
            Vector<Element, V> x[kCopies];
#pragma unroll
            for (int i = 0; i < kCopies; ++i) {
              const int e = head + (base + i * kRowThreads) * V;
              x[i] = a.source.template load_if<V>(e < tail, at + e);
            }
#pragma unroll
            for (int i = 0; i < kCopies; ++i) {
              const int e = head + (base + i * kRowThreads) * V;
              if (e < tail) copied.template put<V>(shift + e, x[i]);
            }
          }
        }
      }
      if (!is_copied) {
        for (int e = threadIdx.x; e < end; e += kRowThreads) {
          int64_t in_row = begin + e, own_row = row;
          if (!one_row) {
            const int64_t ahead = max(begin - row_begin, int64_t{0}) + e, rows = span > 0 ? ahead / span : 0;
            own_row += rows;
            in_row = row_begin + ahead - rows * span;
          }
          if (own_row < t.rows && in_row < t.length)
            copied.template put<1>(e, a.source.template load<1>(a.element(own_row, in_row)));
        }
      }
    }

    // Chunks, while the copy is under way.
    const int found = min(item_count, kItems);
    for (int i = warp; i < kUnits * found; i += kWarps) {
      const Acc v = item_unit(a, items[i / kUnits], i % kUnits);
      if (lane == 0) sums[i] = v;
    }
    if (!copies) {
      for (int place = warp; place < here; place += kWarps) {
        const int length = lengths[place];
        if (length == kNotShort) continue;
        const int64_t own_row = t.row_of(first + place);
        int64_t own = tile_begin + positions[place] - t.position(own_row, first + place - own_row * t.segments, 0);
        own = a.element(own_row, min(max(own, int64_t{0}), t.length - length));
        const Acc v =
            length <= kShort / 4 ? warp_sum<kShort / 4 / kWarp>(a, own, length) : warp_sum<kShort / kWarp>(a, own, length);
        if (lane == 0) write(first + place, length, v);
      }
    }
    __syncthreads();
    if (copies) {
      int width = 1;
      while (width < kWarp && 2 * width * here <= kRowThreads) width *= 2;
      const int groups = kRowThreads / width;
      for (int base = 0; base < here; base += groups) {
        const int place = base + threadIdx.x / width;
        int length = place < here ? lengths[place] : kNotShort;
        const bool is_short = length != kNotShort;
        if (!is_short) length = 0;
        const int at = is_short ? min(max(place_of(place), 0), kCopied - length) : 0;
        const Acc v = copied_sum<Acc>(copied, shift + at, length, width);
        if (is_short && threadIdx.x % width == 0) write(first + place, length, v);
      }
    }
    if (threadIdx.x < found) {
      const RowItem& item = items[threadIdx.x];
      Acc v[kUnits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) v[u] = sums[kUnits * threadIdx.x + u];
      const Acc sum = join_neighbours(v);
      if (item.length > kChunk) {
        a.partials[chunk_slot(t, t.row_of(item.index), item.begin, item.chunk, chunks_of(item.length))] = sum;
      } else {
        write(item.index, item.length, sum);
      }
    }
    first += here;
    __syncthreads();
  }
}

constexpr int kJoinedByWarp = kWarp * kJoinRun;  // chunks of a segment, at most; others are the block's

// Joins the chunks' sums of a segment, by `threads` neighbouring threads: a power of two.
template <class Source, class Acc>
__device__ __forceinline__ Acc join_chunks(const SegmentRowArgs<Source, Acc>& a, const SegmentPlace& s, int thread,
                                           int threads) {
  const int64_t chunks = chunks_of(s.length);
  int64_t run = kJoinRun;  // of a thread
  while (run * threads < chunks) run *= 2;
  Acc waiting[kJoinLevels], v = padding<Acc>();
  const int64_t first = thread * run;
  for (int64_t i = 0; i < run / kJoinRun && (first < chunks || i == 0); ++i) {
    Acc x[kJoinRun];
#pragma unroll
    for (int j = 0; j < kJoinRun; ++j) {
      const int64_t chunk = first + i * kJoinRun + j;
      x[j] = chunk < chunks ? a.partials[chunk_slot(a.tiles, s.row, s.begin, chunk, chunks)] : padding<Acc>();
    }
    v = join_neighbours(x);
    carry_up(waiting, v, i);
  }
  return warp_join(v);
}

// Joins the sums of chunks of those segments that have several, and sees to it that all segments have been taken.
template <class Source, class Acc>
__global__ void __launch_bounds__(kJoinWarps* kWarp) join_segment_rows(const __grid_constant__ SegmentRowArgs<Source, Acc> a) {
  constexpr int kMost = kJoinWarps * kJoinTiles * kMostLong;
  __shared__ int64_t huge[kMost];
  __shared__ int huges;
  __shared__ Acc sums[kJoinWarps];
  const SegmentTiles& t = a.tiles;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (threadIdx.x == 0) huges = 0;
  wait_for_previous_kernel();
  allow_next_kernel();
  __syncthreads();
  const int64_t first = (int64_t{blockIdx.x} * kJoinWarps + warp) * kJoinTiles;
  const auto write = [&](const SegmentPlace& s, Acc v) {
    Acc one[1] = {v};
    a.output.template write<is_any<Source>>(a.result(s.row, s.number), s.length, one);
  };
  if (lane < kJoinTiles && first + lane < t.tiles) t.check_record(first + lane);
  for (int64_t tile = first; tile < min(first + kJoinTiles, t.tiles); ++tile) {
    const TileRecord& record = t.records[tile];
    for (int i = 0; i < record.larges; ++i) {
      const SegmentPlace s = t.place(record.large[i]);
      if (chunks_of(s.length) > kJoinedByWarp) {
        if (lane == 0) huge[atomicAdd(&huges, 1)] = record.large[i];
      } else {
        const Acc v = join_chunks(a, s, lane, kWarp);
        if (lane == 0) write(s, v);
      }
    }
  }
  __syncthreads();
  for (int i = 0; i < huges; ++i) {
    const SegmentPlace s = t.place(huge[i]);
    Acc v = join_chunks(a, s, threadIdx.x, kJoinWarps * kWarp);
    if (lane == 0) sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
      v = warp_join(lane < kJoinWarps ? sums[lane] : padding<Acc>());
      if (lane == 0) write(s, v);
    }
    __syncthreads();
  }
}

}  // namespace gpureduce::cuda
