// Segments of rows whose neighbours in memory belong to different results. A group of threads owns neighbouring columns, V per
// thread. Neighbouring groups of a block may share a segment: each takes a run of its leaves, and they join their sums.
//
// Blocks of one kind take whole segments of up to `short_rows` rows, one or several at a time, each with the same number of
// groups. Blocks of the other kind own a tile of rows each. Longer segments are cut into *pieces*, runs of leaves of a chunk. A
// tile takes the pieces that begin in it one after the other, each with all groups. A second kernel joins the pieces of
// segments that have several.
//
// For example 64 float32 columns with segments of 3 and 3000 rows: V = 2, 8 groups of 32 threads, pieces of up to 256 rows. A
// block takes the first segment: groups 0-2 load one row each, and their thread 0 loads columns 0 and 1. The groups join their
// sums through shared memory, and group 0 writes the results. The second segment has 16 pieces of 32 leaves, whose positions
// are 188 rows apart. The block of tile 0, rows 0-255, takes pieces 0 and 1, at rows 3 and 191. Each group takes 4 leaves of a
// piece: a thread loads the six rows of a leaf at once (rows 3, 515, ..., 2563 for leaf 0), adds them, and joins its 4 leaves.
// The groups join their sums, and group 0 stores a partial sum per column. The second kernel joins the 16 pieces and writes the
// results.
#pragma once

#include "entries.cuh"

namespace gpureduce::cuda {

constexpr int kColumnWarps = kColumnThreads / kWarp;
// Blocks per multiprocessor that leave threads enough registers, by the bytes of a thread's accumulators. Row numbers take
// some, too, and so do the exponentials of several columns.
constexpr int column_blocks(int bytes, bool takes_more) { return (bytes <= 4 ? 5 : 4) - takes_more; }
constexpr int kBatch = 8;  // rows that a thread loads at once
// The most rows of a tiny segment. A thread takes kAtOnce tiny segments together. Where rows are gathered, it takes half as
// many segments, of up to twice as many rows.
constexpr int kTinyRows = 2;
constexpr int kPartLevels = 5;  // levels of the tree above a group's batches
static_assert(kPartRows < kBatch << kPartLevels);
// Most pieces of a tile. Pieces are at least kPartRows apart, but for the last one of a segment and the first one of the next.
constexpr int kMostPieces = kMostTileRows / kPartRows + 4;

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

template <class Loads, class Rows, class Accumulated>
struct SegmentColumnArgs {
  using Source = Loads;
  using Entries = Rows;
  using Acc = Accumulated;
  Source source;
  Entries entries;
  SegmentTiles offsets;
  int64_t columns;
  uint32_t column_tiles;
  int32_t width_bits, part_bits;   // log2 of the threads per group, and of the groups that share a short segment
  int32_t run;                     // short segments that these groups take one after the other
  int32_t short_rows, piece_bits;  // most rows of a short segment; log2 of the most rows of a piece
  SegmentOutput<Acc> output;
  Acc* partials;
};

// How the rows of a chunk are cut into pieces.
struct ChunkPieces {
  int rows, leaf_bits, pieces;  // leaf_bits: log2 of the leaves of a piece, which has at most 2^piece_bits rows

  __device__ __forceinline__ ChunkPieces(int64_t left, int piece_bits) {
    rows = static_cast<int>(min(left, int64_t{kChunk}));
    leaf_bits = min(kLaneBits, piece_bits - max(0, log2_up(rows) - kLaneBits));
    pieces = max(1, (min(rows, kLanes) + (1 << leaf_bits) - 1) >> leaf_bits);
  }
  // Rows from the position of a piece to the next one's.
  __device__ __forceinline__ int spacing() const { return pieces == 1 ? rows : (rows + pieces - 1) / pieces; }
};

// The pieces of a segment, by number. Each chunk has as many numbers as a full chunk has pieces; a partial chunk leaves the
// last ones unused.
struct SegmentPieces {
  int64_t length;
  int piece_bits, bits;  // bits: log2 of the pieces of a full chunk

  __device__ __forceinline__ SegmentPieces(int64_t length, int piece_bits)
      : length(length), piece_bits(piece_bits), bits(kChunkBits - piece_bits) {}
  __device__ __forceinline__ int64_t chunk_of(int64_t piece) const { return piece >> bits; }
  __device__ __forceinline__ int in_chunk(int64_t piece) const { return static_cast<int>(piece & ((1 << bits) - 1)); }
  __device__ __forceinline__ ChunkPieces chunk(int64_t chunk) const { return {length - chunk * kChunk, piece_bits}; }
  __device__ __forceinline__ int64_t count() const {
    const int64_t full = length > 0 ? (length - 1) / kChunk : 0;
    return (full << bits) + chunk(full).pieces;
  }
  // The row that is a piece's position.
  __device__ __forceinline__ int64_t row(int64_t piece) const {
    return chunk_of(piece) * kChunk + in_chunk(piece) * chunk(chunk_of(piece)).spacing();
  }
  // The first piece at or after a row, or a number beyond all pieces.
  __device__ __forceinline__ int64_t first_at(int64_t row) const {
    if (row <= 0) return 0;
    const int64_t c = row / kChunk;
    if (c * kChunk >= length) return count();
    const ChunkPieces p = chunk(c);
    const int spacing = p.spacing(), next = (static_cast<int>(row - c * kChunk) + spacing - 1) / spacing;
    return next < p.pieces ? (c << bits) + next : (c + 1) << bits;
  }
  // The index of a piece's sums in the workspace, if its segment has several pieces. Pieces are at least half of 2^piece_bits
  // rows apart. But a segment's last piece may begin near the next segment's first one, so it has an odd index.
  __device__ __forceinline__ int64_t slot(int64_t begin, int64_t piece) const {
    return 2 * ((begin + row(piece)) >> (piece_bits - 1)) + (piece == count() - 1);
  }
};

// The work that a block's groups take together: leaves of a chunk, or a whole short segment.
struct SegmentPiece {
  int64_t number, length;       // of the segment
  int64_t begin, slot;          // the chunk's first row; the index of the sums, if there are several pieces
  int32_t rows, first, leaves;  // the chunk's rows; the piece's first leaf, and the most leaves that it has
};

// A thread's columns: kSides times V neighbours, kWarp columns apart.
template <int V, int kSides, class Args>
using ColumnLanes = Lanes<typename Args::Source::Element, typename Args::Acc, V * kSides>;

// What a source holds of N outputs; nothing, of most sources.
template <class Source, int N, bool = holds_numbers<Source>>
struct HeldOf {
  struct type {};
};
template <class Source, int N>
struct HeldOf<Source, N, true> {
  using type = decltype(std::declval<const Source&>().template holding<N>(true, 0, 0));
};

// The source of the elements of a thread's columns, for each of its sides.
template <int V, int kSides, class Args>
class SideSources {
  using Source = typename Args::Source;

 public:
  // `result`: the index of the result of the thread's first column; `columns`: how many exist from this one on.
  __device__ __forceinline__ SideSources(const Args& a, bool wanted, int64_t result, int columns) : source_(a.source) {
    if constexpr (holds_numbers<Source>) {
#pragma unroll
      for (int s = 0; s < kSides; ++s)
        held_[s] = a.source.template holding<V>(wanted && s * kWarp < columns, 0, result + s * kWarp);
    }
  }
  __device__ __forceinline__ auto& operator[](int side) const {
    if constexpr (holds_numbers<Source>) return held_[side];
    else return source_;
  }

 private:
  const Source& source_;
  typename HeldOf<Source, V>::type held_[kSides];
};

// kLeaves neighbouring leaves with up to kElements elements each. Rows are found, then loaded, then joined: where rows must be
// looked up, a thread with several Leaves takes each step for all of them, so that no load waits for another lookup.
template <int kLeaves, int kElements, int V, int kSides, class Args>
struct Leaves {
  using Source = typename Args::Source;
  decltype(std::declval<const Args&>().entries.row(true, 0, 0)) row[kLeaves][kElements];
  Vector<typename Source::Element, V> x[kLeaves][kElements][kSides];

  // The leaves from `leaf` on, in a chunk of `rows` rows that begins at entry `first`. Leaves from `end` on are padding.
  __device__ __forceinline__ void find(const Args& a, int64_t first, int rows, int leaf, int end) {
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
      for (int d = 0; d < kElements; ++d)
        row[l][d] = a.entries.row(is_wanted(l, d, rows, leaf, end), first + leaf, l + d * kLanes);
    }
  }
  // `column`: the thread's first one; `columns`: how many exist from it on.
  __device__ __forceinline__ void load(const SideSources<V, kSides, Args>& sources, int rows, int leaf, int end, int64_t column,
                                       int columns) {
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
      for (int d = 0; d < kElements; ++d) {
        for_constants(std::make_integer_sequence<int, kSides>{}, [&](auto side) {
          constexpr int kBeyond = decltype(side)::value * kWarp;
          const bool inside = is_wanted(l, d, rows, leaf, end) && (kBeyond == 0 || kBeyond < columns);
          x[l][d][side] = sources[side].template load_if<V, kBeyond>(inside, row[l][d].place + column);
        });
      }
    }
  }
  __device__ __forceinline__ ColumnLanes<V, kSides, Args> join() const {
    ColumnLanes<V, kSides, Args> leaves[kLeaves];
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
      for (int s = 0; s < kSides; ++s) {
        Lanes<typename Source::Element, typename Args::Acc, V> side;
        side.start(x[l][0][s]);
        row[l][0].weigh(side);
#pragma unroll
        for (int d = 1; d < kElements; ++d) {
          Lanes<typename Source::Element, typename Args::Acc, V> more;
          more.start(x[l][d][s]);
          row[l][d].weigh(more);
          side.add(more);
        }
#pragma unroll
        for (int j = 0; j < V; ++j) leaves[l].sum[s * V + j] = side.sum[j];
      }
    }
    return join_lanes(leaves);
  }

 private:
  static __device__ __forceinline__ bool is_wanted(int l, int d, int rows, int leaf, int end) {
    return leaf + l < end && (kElements == 1 || leaf + l + d * kLanes < rows);
  }
};

// Joins the leaves from `leaf` to before `end` of a chunk of `rows` rows.
template <int V, int kSides, class Args>
__device__ __forceinline__ ColumnLanes<V, kSides, Args> part_sum(const Args& a, const SideSources<V, kSides, Args>& sources,
                                                                 int64_t first, int rows, int leaf, int end, int64_t column,
                                                                 int columns) {
  const int in_batch = rows <= kLanes ? kBatch : rows <= 2 * kLanes ? kBatch / 2 : rows <= 4 * kLanes ? kBatch / 4 : 1;
  ColumnLanes<V, kSides, Args> waiting[kPartLevels], v;
  v.clear();
  int batches = 0;
#pragma unroll 1
  while (leaf < end) {
    const auto sum = [&](auto kLeaves, auto kElements) {
      Leaves<decltype(kLeaves)::value, decltype(kElements)::value, V, kSides, Args> leaves;
      leaves.find(a, first, rows, leaf, end);
      leaves.load(sources, rows, leaf, end, column, columns);
      return leaves.join();
    };
    if (in_batch == kBatch) v = sum(Constant<kBatch>{}, Constant<1>{});
    else if (in_batch == kBatch / 2) v = sum(Constant<kBatch / 2>{}, Constant<2>{});
    else if (in_batch == kBatch / 4) v = sum(Constant<kBatch / 4>{}, Constant<4>{});
    else v = sum(Constant<1>{}, Constant<kDepth>{});
    leaf += in_batch;
    if (batches == 0 && leaf >= end) return v;
    carry(waiting, v, batches++);
  }
  return joined(waiting, batches, v);
}

// Joins the sums of `parts` neighbouring groups of `width` threads; both are powers of two. The first group gets the result.
// All threads of the block must call it. `slots` has one entry per thread.
template <int V, class Acc>
__device__ __forceinline__ void join_groups(Neighbours<Acc, V>& v, int width, int parts, Neighbours<Acc, V>* slots) {
#pragma unroll 1
  for (int mask = width; mask < min(kWarp, width * parts); mask *= 2) v = v + shuffle_xor(v, mask);
  const int warps = width * parts / kWarp, lane = threadIdx.x % kWarp;
  if (warps <= 1) return;
  __syncthreads();
  if (lane < width) slots[threadIdx.x] = v;
  __syncthreads();
  if (lane >= width || threadIdx.x / kWarp % warps > 0) return;
  Neighbours<Acc, V> of_warps[kColumnWarps];
#pragma unroll
  for (int w = 0; w < kColumnWarps; ++w) {
    if (w < warps) {
      of_warps[w] = slots[threadIdx.x + w * kWarp];
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) of_warps[w].of[j] = padding<Acc>();
    }
  }
  v = join_neighbours(of_warps);
}

// Finds the pieces of long segments that begin in a tile, in any order, and returns their number. All threads of the block must
// call it.
__device__ __forceinline__ int find_pieces(const SegmentTiles& t, int64_t tile, int short_rows, int piece_bits,
                                           SegmentPiece* pieces, int32_t& count) {
  const int64_t tile_begin = tile * t.tile, tile_end = tile_begin + t.tile;
  if (threadIdx.x == 0) count = 0;
  int64_t found[2] = {0, t.segments};
  if (t.segments > kColumnThreads) t.first_at({tile_begin, tile_end}, found);
  __syncthreads();
  const auto enter = [&](const SegmentPlace& s) {
    const SegmentPieces segment_pieces(s.length, piece_bits);
    const int64_t end = min(segment_pieces.first_at(tile_end - s.begin), segment_pieces.count());
#pragma unroll 1
    for (int64_t piece = segment_pieces.first_at(tile_begin - s.begin); piece < end; ++piece) {
      const int64_t chunk = segment_pieces.chunk_of(piece);
      const ChunkPieces cut = segment_pieces.chunk(chunk);
      const int at = atomicAdd(&count, 1);
      if (at >= kMostPieces) return;  // only if offsets do not ascend
      pieces[at] = {s.number,
                    s.length,
                    s.begin + chunk * kChunk,
                    segment_pieces.slot(s.begin, piece),
                    cut.rows,
                    segment_pieces.in_chunk(piece) << cut.leaf_bits,
                    1 << cut.leaf_bits};
    }
  };
#pragma unroll 1
  for (int64_t i = found[0] - 1 + threadIdx.x; i < found[1]; i += kColumnThreads * kAtOnce) {
    unsigned longs = 0;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const SegmentEnds ends = t.ends(i + k * kColumnThreads);
      longs |= unsigned{ends.end - ends.begin > short_rows} << k;
    }
#pragma unroll 1
    for (; longs; longs &= longs - 1) enter(t.place(i + (__ffs(longs) - 1) * kColumnThreads));
  }
  __syncthreads();
  return min(count, kMostPieces);
}

template <int V, int kSides, class Args>
__global__ void __launch_bounds__(kColumnThreads, column_blocks(V * kSides * sizeof(typename Args::Acc),
                                                                Args::Entries::kGathers ||
                                                                    (holds_numbers<typename Args::Source> && V * kSides > 2)))
    segment_columns(const __grid_constant__ Args a) {
  using Acc = typename Args::Acc;
  __shared__ SegmentPiece pieces[kMostPieces];
  __shared__ int32_t piece_count;
  __shared__ Neighbours<Acc, V * kSides> slots[kColumnThreads];
  wait_for_previous_kernel();
  allow_next_kernel();
  const SegmentTiles& t = a.offsets;
  const uint32_t block = blockIdx.x / a.column_tiles, column_tile = blockIdx.x - block * a.column_tiles;
  const int width = 1 << a.width_bits, member = threadIdx.x & (width - 1), group = threadIdx.x >> a.width_bits;
  const int groups = kColumnThreads >> a.width_bits;
  const int64_t column = int64_t{column_tile} * width * V * kSides + member * V;
  const bool inside = column < a.columns, is_tile = block < t.tiles;
  const int part_bits = is_tile ? 31 - __clz(groups) : a.part_bits, parts = 1 << part_bits, units = groups >> part_bits;
  const int part = group & (parts - 1);
  const int count = is_tile ? find_pieces(t, block, a.short_rows, a.piece_bits, pieces, piece_count) : a.run;
  int64_t index = int64_t{block - t.tiles} * a.run * units + (group >> part_bits);
  const auto ends = [&](int64_t index) {
    return index < t.segments ? SegmentEnds{t.offset(index), t.offset(index + 1)} : SegmentEnds{};
  };
  using Sums = Neighbours<Acc, V * kSides>;
  const auto widened = [](const ColumnLanes<V, kSides, Args>& lanes) {
    Sums sums;
#pragma unroll
    for (int j = 0; j < V * kSides; ++j) sums.of[j] = cuda::widened<Acc>(lanes.sum[j]);
    return sums;
  };
  const int columns = static_cast<int>(min(a.columns - column, int64_t{kSides * kWarp}));
  // Calls f(column, sums) for each run of V neighbouring columns, where `column` is the first one.
  const auto for_sides = [&](const Sums& sums, auto f) {
#pragma unroll
    for (int s = 0; s < kSides; ++s) {
      Acc v[V];
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = sums.of[s * V + j];
      if (s * kWarp < columns) f(column + s * kWarp, v);
    }
  };
  const auto write = [&](int64_t number, int64_t length, const Sums& sums) {
    for_sides(sums,
              [&](int64_t column, auto& v) { a.output.template write<false>(number * t.result_pitch + column, length, v); });
  };
  const auto sources_of = [&](int64_t number, int rows) {
    return SideSources<V, kSides, Args>(a, rows > 0, number * t.result_pitch + column, columns);
  };
  // Takes the next kTogether segments if all of the warp's are tiny; otherwise returns false.
  constexpr bool kGathers = Args::Entries::kGathers;
  constexpr int kTogether = kGathers ? kAtOnce / 2 : kAtOnce, kTiny = kGathers ? 2 * kTinyRows : kTinyRows;
  const auto take_tiny = [&] {
    SegmentEnds segments[kTogether];
    bool are_tiny = true;
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      segments[k] = ends(index + k * units);
      are_tiny &= segments[k].end - segments[k].begin <= kTiny;
    }
    if (!__all_sync(~0u, are_tiny)) return false;
    Leaves<kTiny, 1, V, kSides, Args> leaves[kTogether];
    int rows[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      t.check(segments[k]);
      rows[k] = inside ? static_cast<int>(segments[k].end - segments[k].begin) : 0;
      leaves[k].find(a, segments[k].begin, rows[k], 0, rows[k]);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      leaves[k].load(sources_of(index + k * units, rows[k]), rows[k], 0, rows[k], column, columns);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t number = index + k * units;
      if (inside && number < t.segments) write(number, segments[k].end - segments[k].begin, widened(leaves[k].join()));
    }
    return true;
  };
#pragma unroll 1
  for (int i = 0; i < count; ++i, index += units) {
    if (!is_tile && i % kTogether == 0 && count >= kTogether && take_tiny()) {
      i += kTogether - 1;
      index += (kTogether - 1) * units;
      continue;
    }
    SegmentPiece piece;
    bool active = inside;
    if (is_tile) {
      piece = pieces[i];
    } else {
      const SegmentEnds segment = ends(index);
      t.check(segment);
      const int64_t length = segment.end - segment.begin;
      active = inside && index < t.segments && length <= a.short_rows;
      piece = {index, length, segment.begin, 0, static_cast<int>(length), 0, kLanes};
    }
    const int rows = active ? piece.rows : 0, there = min(min(rows, kLanes) - piece.first, piece.leaves);
    const int bits = max(0, log2_up(there) - part_bits);
    const int leaf = piece.first + (part << bits), end = min(leaf + (1 << bits), piece.first + there);
    const auto sources = sources_of(piece.number, rows);
    Sums sums = widened(part_sum<V, kSides>(a, sources, piece.begin, rows, leaf, end, column, columns));
    join_groups(sums, width, parts, slots);
    if (!active || part > 0) continue;
    if (piece.length <= 1 << a.piece_bits) write(piece.number, piece.length, sums);
    else for_sides(sums, [&](int64_t column, auto& v) { store_as<Acc>(a.partials, piece.slot * a.columns + column, 1, v); });
  }
}

template <class Acc>
struct JoinColumnArgs {
  SegmentTiles offsets;
  int64_t columns;
  int32_t piece_bits;
  SegmentOutput<Acc> output;
  const Acc* partials;
};

constexpr int kJoinedByColumns = 2 * kJoinRun;  // most pieces of a segment that a warp joins; else its block does

// Joins the pieces of segments that have several, 32 columns at a time. There is a warp for each tile of 2^piece_bits rows.
// Such a segment is longer than a tile, so a tile begins in it, and the warp of the first such tile joins it.
template <class Acc>
__global__ void __launch_bounds__(kJoinWarps* kWarp)
    join_segment_columns(const __grid_constant__ JoinColumnArgs<Acc> a, uint32_t column_tiles) {
  __shared__ SegmentPlace large[kJoinWarps];  // segments that the block joins, or empty
  __shared__ Acc sums[kJoinWarps][kWarp];
  const SegmentTiles& t = a.offsets;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const uint32_t block = blockIdx.x / column_tiles;
  const int64_t column = int64_t{blockIdx.x - block * column_tiles} * kWarp + lane;
  // This needs no sums, so it runs before the wait. The offsets are valid: the first kernel waited for them before it let this
  // one start.
  const int64_t row = (int64_t{block} * kJoinWarps + warp) * t.tile;
  int64_t found[1] = {0};
  if (row < t.length) t.first_at({row + 1}, found);
  const int64_t number = found[0] - 1;
  const SegmentPlace place = t.place(number);
  const bool joins = number >= 0 && row < t.length && place.length > t.tile && place.begin > row - t.tile;
  const bool is_large = joins && SegmentPieces(place.length, a.piece_bits).count() > kJoinedByColumns;
  if (lane == 0) large[warp] = is_large ? place : SegmentPlace{};
  wait_for_previous_kernel();
  allow_next_kernel();

  // The sum of pieces `begin` to begin + run - 1, as far as they exist.
  const auto join = [&](const SegmentPlace& s, int64_t begin, int64_t run) {
    const SegmentPieces segment_pieces(s.length, a.piece_bits);
    const int64_t count = segment_pieces.count();
    Acc waiting[kJoinLevels], v = padding<Acc>();
    int64_t batches = 0;
#pragma unroll 1
    do {
      Acc x[kJoinRun];
#pragma unroll
      for (int j = 0; j < kJoinRun; ++j) {
        const int64_t piece = begin + batches * kJoinRun + j;
        const bool is_there = column < a.columns && piece < count;
        x[j] = is_there ? a.partials[segment_pieces.slot(s.begin, piece) * a.columns + column] : padding<Acc>();
      }
      v = join_neighbours(x);
      carry(waiting, v, batches++);
    } while (batches * kJoinRun < run && begin + batches * kJoinRun < count);
    return joined(waiting, batches, v);
  };
  const auto write = [&](const SegmentPlace& s, Acc v) {
    Acc one[1] = {v};
    if (column < a.columns) a.output.template write<false>(s.number * t.result_pitch + column, s.length, one);
  };
  if (joins && !is_large) write(place, join(place, 0, kJoinedByColumns));
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < kJoinWarps; ++i) {
    const SegmentPlace s = large[i];
    if (s.length == 0) continue;
    int64_t run = kJoinRun;  // pieces per warp: a power of two
#pragma unroll 1
    while (run * kJoinWarps < SegmentPieces(s.length, a.piece_bits).count()) run *= 2;
    sums[warp][lane] = join(s, warp * run, run);
    __syncthreads();
    if (warp == 0) {
      Acc of_warps[kJoinWarps];
#pragma unroll
      for (int w = 0; w < kJoinWarps; ++w) of_warps[w] = sums[w][lane];
      write(s, join_neighbours(of_warps));
    }
    __syncthreads();
  }
}

}  // namespace gpureduce::cuda
