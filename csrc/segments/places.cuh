// How the work on segments is cut into tiles. The host does not read the offsets.
//
// Every segment has a *position*: the index of its first element, plus a *weight* for each segment before it. A tile is a run
// of positions. All tiles have the same size, so they have equal work, whatever the lengths are. Segments of several chunks are
// cut at chunks, and a tile takes the chunks whose positions lie in it. Exact sums cut them at any row.
#pragma once

#undef NDEBUG  // offsets are checked in every build
#include <cassert>

#include "../core/order.h"
#include "../core/plan/limits.h"
#include "../core/problem/index.h"

namespace gpureduce::cuda {

__device__ __forceinline__ int64_t chunks_of(int64_t length) { return (length + kChunk - 1) / kChunk; }

struct SegmentPlace {
  int64_t number, begin, length, position;

  // The number of the segment's chunks that begin before a position, at least 1 if it has any.
  __device__ __forceinline__ int64_t chunks_before(int64_t before) const {
    return min(max((before - position + kChunk - 1) / kChunk, int64_t{1}), chunks_of(length));
  }
};

// The ends of a segment as the offsets give them, unchecked.
struct SegmentEnds { int64_t begin, end; };

struct SegmentTiles {
  const void* offsets;  // null if each entry is a segment
  bool wide;
  int64_t segments, length, tile, tiles;
  int32_t weight;  // the cost of a segment besides its elements, in elements
  int64_t result_pitch;

  __device__ __forceinline__ int64_t offset(int64_t i) const { return offsets ? integer_at(offsets, wide, i) : i; }
  // Empty if there is no segment of this number, even if someone writes to the offsets meanwhile.
  __device__ __forceinline__ SegmentEnds ends(int64_t number) const {
    const int64_t begin = offset(min(max(number, int64_t{0}), segments));
    const int64_t end = offset(min(max(number + 1, int64_t{0}), segments));
    return {begin, number >= 0 && number < segments ? end : begin};
  }
  // Clamped to the data, whatever the offsets are.
  __device__ __forceinline__ SegmentPlace place(int64_t number, const SegmentEnds& ends) const {
    SegmentPlace s;
    s.number = number;
    s.begin = min(max(ends.begin, int64_t{0}), length);
    s.length = max(min(ends.end, length) - s.begin, int64_t{0});
    s.position = s.begin + number * weight;
    return s;
  }
  __device__ __forceinline__ SegmentPlace place(int64_t number) const { return place(number, ends(number)); }
  __device__ __forceinline__ void check(const SegmentEnds& ends) const {
    assert(ends.begin >= 0 && ends.begin <= ends.end && ends.end <= length &&
           "offsets: each must be no less than the one before, and in [0, the size of dim]");
  }
  // Prefetches an offset that will be needed into the L2.
  __device__ __forceinline__ void prefetch(int64_t i) const {
    if (i > segments || !offsets) return;
    const char* const p = static_cast<const char*>(offsets) + i * (wide ? 8 : 4);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
  }
  // A warp finds the first segment at or after each position. If offsets do not ascend, a position has the same answer at each
  // index of `positions`, so neighbouring tiles agree.
  template <int kCount>
  __device__ __forceinline__ void first_at(const int64_t (&positions)[kCount], int64_t (&found)[kCount]) const {
    const int lane = threadIdx.x % kWarp;
    int64_t high[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      found[i] = 0;
      high[i] = segments;
    }
    const auto looks = [&](int i) { return found[i] < high[i]; };
#pragma unroll 1
    while (looks(0) || looks(kCount - 1)) {
      int64_t step[kCount], probe[kCount], at[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        step[i] = (high[i] - found[i] + kWarp - 1) / kWarp;
        probe[i] = found[i] + lane * step[i] + step[i] - 1;
        at[i] = offset(min(max(probe[i], int64_t{0}), segments)) + probe[i] * weight;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const unsigned before = __ballot_sync(~0u, looks(i) && probe[i] < high[i] && at[i] < positions[i]);
        if (!looks(i)) continue;
        found[i] += __popc(before) * step[i];
        high[i] = min(high[i], found[i] + step[i] - 1);
      }
    }
  }
};

}  // namespace gpureduce::cuda
