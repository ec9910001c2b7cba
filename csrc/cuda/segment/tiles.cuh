// How the work on segments is cut into tiles, a block each, without a look at the offsets on the host.
//
// Every segment has a *position*: its first element's index, and a *weight* more for each segment before it. Positions ascend
// strictly, also where segments are empty, and the last one is known to be no more than row_positions. A tile is a run of
// positions, all tiles of the same size: so tiles have as much to do, whatever the lengths are. Segments are cut into items, at
// positions of their own, and a tile takes the items whose positions lie in it. A block takes neighbouring tiles, and finds its
// first segment by a search.
#pragma once

#include <c10/macros/Macros.h>

#include "../args.cuh"

namespace gpureduce::cuda {

constexpr int kMostLong = 4;     // segments of several items that begin in a tile
constexpr int kJoinWarps = 16;   // of a block that joins partial sums
constexpr int kJoinTiles = 1;    // that a warp of it sees to
constexpr int kJoinLevels = 32;  // of a thread's runs of partial sums

// What a tile tells the kernel that joins the partial sums.
struct TileRecord {
  int64_t first, end;        // the segments that begin in the tile
  int64_t large[kMostLong];  // those of several items
  int32_t larges;
};

struct SegmentPlace {
  int64_t row, number;  // in the row
  int64_t begin, length, position;
};

// As they stand in the offsets.
struct SegmentEnds { int64_t begin, end; };

// The same offsets for each of some rows. Segments are numbered row by row.
struct SegmentTiles {
  const void* offsets;
  bool wide;
  int64_t segments, length, rows, row_positions, tile, tiles;
  int32_t weight;       // what a segment costs beside its elements, in elements
  TileRecord* records;  // one a tile; null: there is one tile
  int64_t result_pitch;

  __device__ __forceinline__ int64_t offset(int64_t i) const {
    return wide ? static_cast<const int64_t*>(offsets)[i] : static_cast<const int32_t*>(offsets)[i];
  }
  __device__ __forceinline__ int64_t count() const { return rows * segments; }

  __device__ __forceinline__ int64_t row_of(int64_t index) const {
    if (rows == 1) return 0;
    if ((index | segments) >> 32 == 0) return static_cast<uint32_t>(index) / static_cast<uint32_t>(segments);
    return index / segments;
  }
  __device__ __forceinline__ int64_t position(int64_t row, int64_t number, int64_t begin) const {
    return row * row_positions + begin + number * weight;
  }

  // Nothing where there is no such segment.
  __device__ __forceinline__ SegmentEnds ends(int64_t index) const {
    if (index < 0 || index >= count()) return {0, 0};
    const int64_t number = index - row_of(index) * segments;
    return {offset(number), offset(number + 1)};
  }

  __device__ __forceinline__ SegmentPlace place(int64_t index) const { return place(index, ends(index)); }
  __device__ __forceinline__ SegmentPlace place(int64_t index, const SegmentEnds& ends) const {
    SegmentPlace s;
    s.row = row_of(index);
    s.number = index - s.row * segments;
    const auto [begin, end] = ends;
    CUDA_KERNEL_ASSERT(begin >= 0 && begin <= end && end <= length &&
                       "offsets: each must be no less than the one before, and in [0, the size of dim]");
    s.begin = min(max(begin, int64_t{0}), length);
    s.length = max(min(end, length) - s.begin, int64_t{0});
    s.position = position(s.row, s.number, s.begin);
    return s;
  }

  // The same of a row's own segments and positions.
  __device__ __forceinline__ SegmentEnds ends_in_row(int64_t number) const {
    return {offset(min(max(number, int64_t{0}), segments)), offset(min(max(number + 1, int64_t{0}), segments))};
  }
  __device__ __forceinline__ SegmentPlace place_in_row(int64_t number, const SegmentEnds& ends) const {
    SegmentPlace s;
    s.row = 0;
    s.number = number;
    s.begin = min(max(ends.begin, int64_t{0}), length);
    s.length = max(min(ends.end, length) - s.begin, int64_t{0});
    s.position = s.begin + number * weight;
    return s;
  }
  // Has an offset that will be wanted brought to the L2.
  __device__ __forceinline__ void prefetch(int64_t i) const {
    if (i > segments) return;
    const char* const p = static_cast<const char*>(offsets) + i * (wide ? 8 : 4);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
  }
  // The first segments of a row at two positions or after them, by a warp. Where offsets do not ascend, a position has the same
  // answer, whichever of the two it is.
  __device__ __forceinline__ void first_in_row(const int64_t (&positions)[2], int64_t (&found)[2]) const {
    const int lane = threadIdx.x % kWarp;
    int64_t high[2] = {segments, segments};
    found[0] = found[1] = 0;
#pragma unroll 1
    while (found[0] < high[0] || found[1] < high[1]) {
      int64_t step[2], probe[2], at[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        step[i] = (high[i] - found[i] + kWarp - 1) / kWarp;
        probe[i] = found[i] + lane * step[i] + step[i] - 1;
        at[i] = offset(min(max(probe[i], int64_t{0}), segments)) + probe[i] * weight;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool looks = found[i] < high[i];
        const unsigned before = __ballot_sync(~0u, looks && probe[i] < high[i] && at[i] < positions[i]);
        if (!looks) continue;
        found[i] += __popc(before) * step[i];
        high[i] = min(high[i], found[i] + step[i] - 1);
      }
    }
  }

  // The first segment at a position or after it. All threads of the block look at once.
  __device__ __forceinline__ int64_t first_at(int64_t position) const {
    const int64_t row = position / row_positions;
    if (row >= rows) return count();
    const int64_t in_row = position - row * row_positions;
    int64_t low = 0, high = segments;
#pragma unroll 1
    while (low < high) {
      const int64_t step = (high - low + blockDim.x - 1) / blockDim.x, probe = low + threadIdx.x * step + step - 1;
      const bool is_before = probe < high && offset(probe) + probe * weight < in_row;
      low += __syncthreads_count(is_before) * step;
      high = min(high, low + step - 1);
    }
    return row * segments + low;
  }

  // Says which segments a block has taken. The join kernel finds out whether that is all of them: together with what place()
  // has checked, then all offsets ascend.
  __device__ __forceinline__ void note(int64_t tile, int64_t first, int64_t end, const int64_t* large, int larges) const {
    if (records) {
      TileRecord& record = records[tile];
      record.first = first;
      record.end = end;
      record.larges = min(larges, kMostLong);
      for (int i = 0; i < min(larges, kMostLong); ++i) record.large[i] = large[i];
    } else {
      CUDA_KERNEL_ASSERT(first == 0 && end == count() && "offsets: each must be no less than the one before");
    }
  }

  // The first tile of a block; its last one is before that of the next block.
  __device__ __forceinline__ int64_t first_tile(int64_t block, int64_t blocks) const {
    return block * (tiles / blocks) + min(block, tiles % blocks);
  }

  __device__ __forceinline__ void check_record(int64_t tile) const {
    const int64_t next = tile + 1 < tiles ? records[tile + 1].first : count();
    CUDA_KERNEL_ASSERT(records[tile].end == next && (tile > 0 || records[0].first == 0) &&
                       "offsets: each must be no less than the one before");
  }
};

// Where results go.
template <class Acc>
struct SegmentOutput {
  void* result;
  DType dtype;
  Finish finish;

  // The sums of `count` elements of neighbouring columns. kAny: they may be of any dtype.
  template <bool kAny, int V>
  __device__ __forceinline__ void write(int64_t index, int64_t count, Acc (&v)[V]) const {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (count == 0) v[j] = Acc{};  // all of it is padding
      if constexpr (kAny) {
        store_any(result, index + j, dtype, finish, count, v[j]);
      } else if constexpr (!std::is_integral_v<Acc>) {
        if (finish != Finish::none) v[j] = quotient(v[j], count);
      }
    }
    if constexpr (!kAny) store_direct(result, index, 1, dtype, v);
  }
};

constexpr int kUnrolledLevels = 8;  // more stand in local memory, whose code is short

// Joins values that come one by one, nearest neighbours first: `waiting` has a value for each bit of the index. `v` becomes the
// sum of all values that are complete with it.
template <int kLevels, class T, class Index>
__device__ __forceinline__ void carry_up(T (&waiting)[kLevels], T& v, Index index) {
  if constexpr (kLevels > kUnrolledLevels) {
    int level = 0;
#pragma unroll 1
    for (; index >> level & 1; ++level) v = waiting[level] + v;
    waiting[level] = v;
    return;
  }
  bool on = true;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if (on && (index >> level & 1)) {
      v = waiting[level] + v;
    } else if (on) {
      waiting[level] = v;
      on = false;
    }
  }
}

// Joins neighbouring values that came one by one through carry_up(), `count` of them: fewer than a power of two.
template <int kLevels, class T, class Index, class Add>
__device__ __forceinline__ T joined(T (&waiting)[kLevels], Index count, Add add) {
  T v;
  bool none = true;
#pragma unroll kLevels> kUnrolledLevels ? 1 : kLevels
  for (int level = 0; level < kLevels; ++level) {
    if (!(count >> level & 1)) continue;
    if (!none) add(waiting[level], v);
    v = waiting[level];
    none = false;
  }
  return v;
}

}  // namespace gpureduce::cuda
