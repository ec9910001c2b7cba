// Segments of rows whose neighbours in memory belong to different results. A group of threads owns neighbouring columns, V a
// thread, and takes a *part* of a segment: up to kPartRows rows. As many parts as a block has groups, neighbours in a chunk,
// are an *item*, which the block joins. A second kernel joins the items of long segments.
#pragma once

#include "tiles.cuh"

namespace gpureduce::cuda {

constexpr int kColumnThreads = 128;  // of a block
// Blocks that are to fit on a multiprocessor: as many as leave threads the registers that they need.
constexpr int column_blocks(int vector) { return vector == 1 ? 8 : 4; }
constexpr int kPartBits = 6;
constexpr int kPartRows = 1 << kPartBits;
constexpr int kBatch = 8;  // rows that a thread loads at once
constexpr int kPartBatches = kPartRows / kBatch;
constexpr int kLeastWidth = 4;  // threads of a group
constexpr int kMostGroups = kColumnThreads / kLeastWidth;
constexpr int kLeastGroups = kColumnThreads / kWarp;
constexpr int kPartLevels = 6;  // of the tree above an item's parts
constexpr int kColumnWeight = 8;

// Columns of a thread: as many as a load of 16 bytes has, whose accumulators fit into 32.
GPUREDUCE_HOST_DEVICE constexpr int segment_vector(int size, int accumulator) {
  return (kGranule / size < 2 * kGranule / accumulator) ? kGranule / size : 2 * kGranule / accumulator;
}

template <class Source, class Acc>
struct SegmentColumnArgs {
  Source source;
  int64_t pitch;  // from a row to the next one
  SegmentTiles tiles;
  int64_t columns;
  uint32_t column_tiles;
  int32_t width, group_bits;  // threads of a group: a power of two, from kLeastWidth to a warp; and of the number of groups
  SegmentOutput<Acc> output;
  Acc* partials;
};

// How the rows of a chunk are cut. A part has a run of leaves, so many that their rows are kPartRows at most.
struct ChunkParts {
  int rows, depth, leaves, parts, items;  // leaves: of a part; parts and items: of the chunk

  // group_bits: of the number of groups, a power of two
  __device__ __forceinline__ ChunkParts(int64_t left, int group_bits) {
    rows = static_cast<int>(min(left, int64_t{kChunk}));
    int depth_bits = 0;
#pragma unroll 1
    while (kLanes << depth_bits < rows) ++depth_bits;
    depth = 1 << depth_bits;
    leaves = kPartRows >> depth_bits;
    parts = max(1, (min(rows, kLanes) + leaves - 1) >> (kPartBits - depth_bits));
    items = (parts + (1 << group_bits) - 1) >> group_bits;
  }
  // Rows from an item's position to the next one's.
  __device__ __forceinline__ int spacing() const { return items == 1 ? rows : (rows + items - 1) / items; }
};

// The items of a segment, by numbers; those of a chunk that is not full end before `per_chunk`.
struct SegmentItems {
  int64_t length;
  int group_bits, bits;  // bits: of the items of a full chunk

  __device__ __forceinline__ SegmentItems(int64_t length, int group_bits)
      : length(length), group_bits(group_bits), bits(max(0, kPartBits - group_bits)) {}
  __device__ __forceinline__ int64_t chunk_of(int64_t item) const { return item >> bits; }
  __device__ __forceinline__ int in_chunk(int64_t item) const { return static_cast<int>(item & ((1 << bits) - 1)); }
  __device__ __forceinline__ ChunkParts chunk(int64_t chunk) const { return {length - chunk * kChunk, group_bits}; }
  __device__ __forceinline__ int64_t count() const {
    const int64_t full = length > 0 ? (length - 1) / kChunk : 0;
    return (full << bits) + chunk(full).items;
  }
  // The first row that counts as an item's own.
  __device__ __forceinline__ int64_t row(int64_t item) const {
    const int64_t c = chunk_of(item);
    return c * kChunk + in_chunk(item) * chunk(c).spacing();
  }
  // The first item at a row or after it.
  __device__ __forceinline__ int64_t first_at(int64_t row) const {
    if (row <= 0) return 0;
    const int64_t c = row / kChunk;
    if (c * kChunk >= length) return count();
    const ChunkParts p = chunk(c);
    const int spacing = p.spacing(), next = (static_cast<int>(row - c * kChunk) + spacing - 1) / spacing;
    return next < p.items ? (c << bits) + next : (c + 1) << bits;
  }
  // Where an item's sums stand, of a segment of several. A segment's last item may begin near the next segment, and so has a
  // place beside the others'.
  __device__ __forceinline__ int64_t slot(int64_t begin, int64_t item) const {
    return 2 * ((begin + row(item)) / (kLeastGroups * kPartRows / 2)) + (item == count() - 1);
  }
};

// Batches of leaves from their elements, kElements of each.
template <int kElements, class Sums, class Elements>
__device__ __forceinline__ Sums leaves_sum(const Elements (&x)[kBatch]) {
  Sums leaves[kBatch / kElements];
#pragma unroll
  for (int l = 0; l < kBatch / kElements; ++l) {
    leaves[l].start(x[l * kElements]);
#pragma unroll
    for (int d = 1; d < kElements; ++d) leaves[l].add(x[l * kElements + d]);
  }
  return join_lanes(leaves);
}

// The sums of V columns of a part: of up to kPartRows / depth leaves from `leaf` on, of a chunk of `rows` rows from `offset`
// on. depth: 1, 2, 4 or 8.
template <int V, class Source, class Acc>
__device__ __forceinline__ void part_sum(const SegmentColumnArgs<Source, Acc>& a, int64_t offset, int rows, int leaf, int depth,
                                         Acc (&sums)[V]) {
  using Element = typename Source::Element;
  using Sums = Lanes<Element, Acc, V>;
  const int bits = __ffs(depth) - 1, in_batch = kBatch >> bits;
  const int left = min(kLanes, rows) - leaf, batches = max(1, min(kPartBatches, (left + in_batch - 1) / in_batch));
  Sums waiting[4];
#pragma unroll 1
  for (int b = 0; b < batches; ++b) {
    Vector<Element, V> x[kBatch];
    const int first = leaf + b * in_batch;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = first + (i >> bits) + (i & (depth - 1)) * kLanes;
      x[i] = a.source.template load_if<V>(row < rows, offset + row * a.pitch);
    }
    Sums v;
    if (depth == 1) v = leaves_sum<1, Sums>(x);
    else if (depth == 2) v = leaves_sum<2, Sums>(x);
    else if (depth == 4) v = leaves_sum<4, Sums>(x);
    else v = leaves_sum<kDepth, Sums>(x);
    bool on = true;
#pragma unroll
    for (int level = 0; level < 4; ++level) {
      if (on && (b >> level & 1)) {
        waiting[level].add(v);
        v = waiting[level];
      } else if (on) {
        waiting[level] = v;
        on = false;
      }
    }
  }
  const Sums all = joined(waiting, batches, [](Sums& left, const Sums& right) { left.add(right); });
#pragma unroll
  for (int j = 0; j < V; ++j) sums[j] = static_cast<Acc>(all.sum[j]);
}

struct SegmentItem {
  int64_t number;                // in its segment
  int64_t index, begin, length;  // of its segment
  int32_t first, parts;          // places of its parts
  int32_t sums;                  // and of their sums, if they are several
  bool alone;                    // is all of its segment
};

template <int V, class Source, class Acc>
__global__ void __launch_bounds__(kColumnThreads, column_blocks(V))
    segment_columns(const __grid_constant__ SegmentColumnArgs<Source, Acc> a) {
  constexpr int kMostItems = kMostGroups * kPartRows / kColumnWeight + 2;
  constexpr int kParts = kPartRows / kColumnWeight + 4, kSums = 4;  // for each group: at most
  constexpr int kSide = V < 2 ? V : 2;                              // columns whose parts a thread joins at once
  __shared__ SegmentItem items[kMostItems];
  __shared__ uint16_t item_of[kParts * kMostGroups];
  __shared__ Acc sums[kSums * kColumnThreads * V];
  __shared__ int32_t item_count, part_count, sum_count, larges, parts_taken;
  __shared__ int64_t large[kMostLong];
  wait_for_previous_kernel();
  allow_next_kernel();
  const SegmentTiles& t = a.tiles;
  const uint32_t block = blockIdx.x / a.column_tiles, column_tile = blockIdx.x - block * a.column_tiles;
  const int bits = a.group_bits, groups = 1 << bits, group = threadIdx.x * groups / kColumnThreads;
  const int member = threadIdx.x & (a.width - 1);
  const int tile_columns = a.width * V;
  const int64_t own_column = int64_t{column_tile} * tile_columns + member * V;
  const bool inside = own_column < a.columns;
  const unsigned mates = __ballot_sync(~0u, inside) & (~0u >> (kWarp - a.width)) << (threadIdx.x % kWarp - member);
  const auto next_part = [&] {
    const int own = member == 0 ? atomicAdd(&parts_taken, 1) : 0;
    return __shfl_sync(mates, own, 0, a.width);
  };

  // Enters those items of a segment that belong to a tile.
  const auto enter = [&](int64_t index, const SegmentPlace& s, int64_t tile_begin, int64_t tile_end) {
    const SegmentItems all(s.length, bits);
    const int64_t count = all.count();
    for (int64_t i = all.first_at(tile_begin - s.position); i < count && s.position + all.row(i) < tile_end; ++i) {
      const int parts = min(groups, all.chunk(all.chunk_of(i)).parts - all.in_chunk(i) * groups);
      const int at = atomicAdd(&item_count, 1), first_part = atomicAdd(&part_count, parts);
      const int first_sum = parts > 1 ? atomicAdd(&sum_count, parts) : 0;
      if (at >= kMostItems || first_part + parts > kParts * groups || first_sum + parts > kSums * groups)
        return;  // the offsets do not ascend
      items[at] = {i, index, s.begin, s.length, first_part, parts, first_sum, count == 1};
#pragma unroll 1
      for (int k = 0; k < parts; ++k) item_of[first_part + k] = at;
    }
  };
  // Writes sums of an item, of columns from `column` on.
  const auto write = [&](const SegmentItem& item, int64_t column, auto& v) {
    if (item.alone) {
      a.output.template write<false>(item.index * t.result_pitch + column, item.length, v);
    } else {
      const int64_t slot = SegmentItems(item.length, bits).slot(item.begin, item.number);
      store_as<Acc>(a.partials, slot * a.columns + column, 1, v);
    }
  };

  const int64_t blocks = gridDim.x / a.column_tiles, last_tile = t.first_tile(int64_t{block} + 1, blocks);
  int64_t tile = t.first_tile(block, blocks), first = t.first_at(tile * t.tile);
  for (; tile < last_tile; ++tile) {
    const int64_t tile_begin = tile * t.tile, tile_end = tile_begin + t.tile;
    __syncthreads();
    if (threadIdx.x == 0) {
      item_count = part_count = sum_count = larges = 0;
      parts_taken = groups;
    }
    __syncthreads();
    if (threadIdx.x == 0 && first > 0) enter(first - 1, t.place(first - 1), tile_begin, tile_end);
    int64_t end = first;
    for (int here = kColumnThreads; here == kColumnThreads && end - first < t.tile; end += here) {
      const int64_t index = end + threadIdx.x;
      SegmentPlace s{};
      bool is_here = false;
      if (index < t.count()) {
        s = t.place(index);
        is_here = s.position < tile_end;
      }
      if (is_here) {
        enter(index, s, tile_begin, tile_end);
        if (SegmentItems(s.length, bits).count() > 1) {
          const int at = atomicAdd(&larges, 1);
          if (at < kMostLong) large[at] = index;
        }
      }
      here = __syncthreads_count(is_here);
    }
    if (threadIdx.x == 0 && column_tile == 0) t.note(tile, first, end, large, larges);
    first = end;

    const int parts = min(part_count, kParts * groups), count = min(item_count, kMostItems);
    // Groups take parts as they get ready for one.
#pragma unroll 1
    for (int i = group; i < parts && inside; i = next_part()) {
      const SegmentItem& item = items[item_of[i]];
      const SegmentItems all(item.length, bits);
      const int64_t chunk = all.chunk_of(item.number);
      const ChunkParts p = all.chunk(chunk);
      const int part = all.in_chunk(item.number) * groups + i - item.first;
      const int64_t offset = (item.begin + chunk * kChunk) * a.pitch + own_column;
      Acc v[V];
      part_sum<V>(a, offset, p.rows, part * p.leaves, p.depth, v);
      if (item.parts == 1) write(item, own_column, v);
      else store_as<Acc>(sums, (item.sums + i - item.first) * tile_columns + member * V, 1, v);
    }
    __syncthreads();
    if (sum_count == 0) continue;
#pragma unroll 1
    for (int i = group; i < count * (V / kSide) && inside; i += groups) {
      const SegmentItem& item = items[i / (V / kSide)];
      if (item.parts == 1) continue;
      const int side = i % (V / kSide) * kSide;
      Neighbours<Acc, kSide> waiting[kPartLevels], v;
#pragma unroll 1
      for (int k = 0; k < item.parts; ++k) {
        const Acc* const from = sums + (item.sums + k) * tile_columns + member * V + side;
#pragma unroll
        for (int j = 0; j < kSide; ++j) v.of[j] = from[j];
        carry_up(waiting, v, k);
      }
      v = joined(waiting, item.parts, [](auto& left, const auto& right) { left = left + right; });
      write(item, own_column + side, v.of);
    }
  }
}

constexpr int kJoinedByColumns = 2 * kJoinRun;  // items of a segment, that a warp joins; others are the block's

// Joins the items of those segments that have several, 32 columns at a time, and sees to it that all segments have been taken.
template <class Acc>
struct JoinColumnArgs {
  SegmentTiles tiles;
  int64_t columns;
  int32_t group_bits;
  SegmentOutput<Acc> output;
  const Acc* partials;
};

template <class Acc>
__global__ void __launch_bounds__(kJoinWarps* kWarp)
    join_segment_columns(const __grid_constant__ JoinColumnArgs<Acc> a, uint32_t column_tiles) {
  constexpr int kMost = kJoinWarps * kJoinTiles * kMostLong;
  __shared__ int64_t huge[kMost];
  __shared__ int huges;
  __shared__ Acc sums[kJoinWarps][kWarp];
  const SegmentTiles& t = a.tiles;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, bits = a.group_bits;
  const uint32_t block = blockIdx.x / column_tiles;
  const int64_t column = int64_t{blockIdx.x - block * column_tiles} * kWarp + lane;
  if (threadIdx.x == 0) huges = 0;
  wait_for_previous_kernel();
  allow_next_kernel();
  __syncthreads();
  const int64_t first = (int64_t{block} * kJoinWarps + warp) * kJoinTiles;

  // The sum of items `begin` to begin + run - 1, as many of them as there are.
  const auto join = [&](const SegmentPlace& s, const SegmentItems& all, int64_t begin, int64_t run) {
    const int64_t count = all.count();
    Acc waiting[kJoinLevels], v = padding<Acc>();
    int64_t batches = 0;
#pragma unroll 1
    do {
      Acc x[kJoinRun];
#pragma unroll
      for (int j = 0; j < kJoinRun; ++j) {
        const int64_t item = begin + batches * kJoinRun + j;
        const bool is_there = column < a.columns && item < count;
        x[j] = is_there ? a.partials[all.slot(s.begin, item) * a.columns + column] : padding<Acc>();
      }
      v = join_neighbours(x);
      carry_up(waiting, v, batches++);
    } while (batches * kJoinRun < run && begin + batches * kJoinRun < count);
    return joined(waiting, batches, [](Acc& left, const Acc& right) { left = left + right; });
  };
  const auto write = [&](const SegmentPlace& s, Acc v) {
    Acc one[1] = {v};
    if (column < a.columns) a.output.template write<true>(s.number * t.result_pitch + column, s.length, one);
  };
  if (lane < kJoinTiles && first + lane < t.tiles) t.check_record(first + lane);
#pragma unroll 1
  for (int64_t tile = first; tile < min(first + kJoinTiles, t.tiles); ++tile) {
    const TileRecord& record = t.records[tile];
    if (lane < record.larges) huge[atomicAdd(&huges, 1)] = record.large[lane];
  }
  __syncthreads();
  // Each of a warp's own first, then those that are left, which the block takes together.
#pragma unroll 1
  for (int i = 0; i < 2 * huges; ++i) {
    const bool together = i >= huges;
    const int which = together ? i - huges : i;
    if (i == huges) __syncthreads();
    if (together ? huge[which] < 0 : which % kJoinWarps != warp) continue;
    const SegmentPlace s = t.place(huge[which]);
    const SegmentItems all(s.length, bits);
    if (!together && all.count() > kJoinedByColumns) continue;
    int64_t run = kJoinRun;  // of a warp: a power of two
#pragma unroll 1
    while (run * (together ? kJoinWarps : 1) < all.count()) run *= 2;
    Acc v = join(s, all, together ? warp * run : 0, run);
    if (together) {
      sums[warp][lane] = v;
      __syncthreads();
      Acc from_warps[kJoinWarps];
#pragma unroll
      for (int w = 0; w < kJoinWarps; ++w) from_warps[w] = sums[w][lane];
      v = join_neighbours(from_warps);
      __syncthreads();
    }
    if (!together || warp == 0) write(s, v);
    __syncwarp();
    if (!together && lane == 0) huge[which] = -1;
  }
}

}  // namespace gpureduce::cuda
