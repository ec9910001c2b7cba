// Rows too short to be loaded by whole warps, through a ring of stages in shared memory.
#pragma once

#include "ring.cuh"

namespace gpureduce::cuda {

// Of V elements the first n, and padding for the others.
template <class Element, int V>
struct First {
  typename Vector<Element, V>::Bits keep, other;

  First() = default;
  __device__ __forceinline__ explicit First(int n) {
    Vector<Element, V> ones, rest;
    memset(&ones, 0xff, sizeof(ones));
    memset(&rest, 0, sizeof(rest));
    Element none;
    memset(&none, 0, sizeof(none));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (j < n) continue;
      ones.set(j, none);
      rest.set(j, padding_element<Element>());
    }
    keep = ones.bits;
    other = rest.bits;
  }
  __device__ __forceinline__ Vector<Element, V> of(Vector<Element, V> x) const { return {(x.bits & keep) | other}; }
};

// Short rows, every element of which is a leaf: kWidth threads a row, a read each, and 32 / kWidth rows side by side; or
// kGroups times 32 reads a row. A thread reads kLoads times, from other rows or groups; then the values change hands, so that
// as many threads as there are values have one each.
template <int kWidth, int kGroups, class Element>
struct ShortRows {
  using From = Staged<Element>;
  static constexpr int V = From::V, kSide = kWarp / kWidth;
  static constexpr int kRows = kLoads * kSide / kGroups;  // at once
  static constexpr int kBatch = kWidth < kLoads ? kWidth : kLoads, kResults = kLoads / kBatch;
  static_assert(kGroups == 1 || (kWidth == kWarp && kGroups <= kLoads));

  struct Part {
    int offset;  // of the thread's read in a row
    First<Element, V> inside;
  };
  Part part[kGroups];
  int pitch;

  // Rows of `count` elements, `pitch` bytes apart.
  __device__ __forceinline__ ShortRows(int count, int pitch) : pitch(pitch) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int e = (threadIdx.x % kWidth + g * kWarp) * V;
      part[g] = {e < count ? e * static_cast<int>(sizeof(Element)) : 0, First<Element, V>(count - e)};
    }
  }

  // The row of the kRows that this thread's result is of; and whether it is the one to write it.
  static __device__ __forceinline__ int row(int result) {
    const int lane = threadIdx.x % kWarp;
    return (result * kBatch + lane % kBatch) / kGroups * kSide + lane / kWidth;
  }
  static __device__ __forceinline__ bool writes() { return threadIdx.x % kWidth < kBatch && threadIdx.x % kGroups == 0; }

  // The sums of the kRows rows from `p` on, of which `rows` are there.
  template <class Acc>
  __device__ __forceinline__ void sum(const char* p, int rows, Acc (&results)[kResults]) const {
    const int last = (rows - 1) * pitch;
    int offset = threadIdx.x % kWarp / kWidth * pitch;
    typename From::Read x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      x[i] = From::read(p + (offset < last ? offset : last) + part[i % kGroups].offset);
      if (i % kGroups == kGroups - 1) offset += kSide * pitch;
    }
#pragma unroll
    for (int r = 0; r < kResults; ++r) {
      Acc v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        RowLanes<Element, Acc, V> lanes;
        lanes.start(part[i % kGroups].inside.of(x[r * kBatch + i]));
        v[i] = lanes.join();
      }
      results[r] = warp_join(warp_transpose_join<kBatch, kWidth>(v), 1, kGroups);
    }
  }
};

// Short rows again, but a thread takes a whole one, word by word, so that nothing changes hands; 32 rows at once. Where rows
// are no even number of words apart, at most four threads meet in a bank.
template <class Element>
struct WholeRows {
  static constexpr int V = Staged<Element>::V, kRows = kWarp, kResults = 1;
  static constexpr int kLogRun = 3, kLogRuns = 4;  // words read at once; runs of them
  static_assert(kWholeRowWords <= 1 << (kLogRun + kLogRuns));

  int whole, pitch;       // words before the last
  First<Element, V> end;  // of the last one

  // Rows of `count` elements, `pitch` bytes apart.
  __device__ __forceinline__ WholeRows(int count, int pitch) : whole((count - 1) / V), pitch(pitch), end(count - whole * V) {}

  static __device__ __forceinline__ int row(int) { return threadIdx.x % kWarp; }
  static __device__ __forceinline__ bool writes() { return true; }

  // The sums of the kRows rows from `p` on, of which `rows` are there.
  template <class Acc>
  __device__ __forceinline__ void sum(const char* p, int rows, Acc (&results)[kResults]) const {
    using LaneSum = Lane<Element, Acc>;
    Words words(p + min(static_cast<int>(threadIdx.x % kWarp), rows - 1) * pitch);
    // Runs, then what is left of them: four words, two, and one, as the bits of their number say.
    LaneSum waiting[1 << kLogRuns], left[kLogRun];
    for (int run = 0; run < whole >> kLogRun; ++run) {
      LaneSum v = words.template next<kLogRun, LaneSum>();
      carry(waiting, v, run, [](LaneSum& left, LaneSum right) { left = left + right; });
    }
    if (whole & 4) left[2] = words.template next<2, LaneSum>();
    if (whole & 2) left[1] = words.template next<1, LaneSum>();
    if (whole & 1) left[0] = words.template next<0, LaneSum>();
    // The last word is the right neighbour of all that wait.
    Sums<LaneSum> last;
    last.start(end.of(words.next()));
    LaneSum v = last.join();
#pragma unroll
    for (int level = 0; level < kLogRun; ++level)
      if (whole >> level & 1) v = left[level] + v;
#pragma unroll
    for (int level = 0; level < kLogRuns; ++level)
      if (whole >> kLogRun >> level & 1) v = waiting[level] + v;
    results[0] = v;
  }

 private:
  template <class LaneSum>
  using Sums = RowLanes<Element, LaneSum, V>;

  // The words of a row, one after the other.
  struct Words {
    const uint32_t* at;
    int shift;
    uint32_t word;

    __device__ __forceinline__ explicit Words(const char* p)
        : at(reinterpret_cast<const uint32_t*>(align_down<4>(p))), shift(8 * past<4>(p)), word(*at) {}

    __device__ __forceinline__ Vector<Element, V> next() {
      const uint32_t first = word;
      word = *++at;
      if constexpr (V == 1) return {first};
      else return {__funnelshift_r(first, word, shift)};
    }
    // The sum of the next 1 << kLogCount words.
    template <int kLogCount, class LaneSum>
    __device__ __forceinline__ LaneSum next() {
      constexpr int kCount = 1 << kLogCount;
      Vector<Element, V> x[kCount];
#pragma unroll
      for (auto& mine : x) mine = next();
      Sums<LaneSum> lanes[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (Sums<LaneSum>::kOrderFree && i > 0) lanes[0].add(x[i]);
        else lanes[i].start(x[i]);
      }
      if constexpr (Sums<LaneSum>::kOrderFree) {
        return lanes[0].join();
      } else {
        LaneSum sums[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) sums[i] = lanes[i].join();
        return join_neighbours(sums);
      }
    }
  };
};

struct RowsNote {
  int64_t place;    // of the first row's result
  int64_t partial;  // or partial sum
  int32_t rows;
  int32_t offset;  // in the stage
};

// A pair of warps takes tiles, strided by all pairs of the grid. A stage is one tile: as many rows as it holds, as they stand
// in memory.
template <class Rows, class Source, class Acc>
__global__ void __launch_bounds__(2 * kMaxRingPairs * kWarp, kRingBlocks)
    ring_short_rows(const __grid_constant__ Args<Source, Acc> a) {
#if __CUDA_ARCH__ >= 900
  using Element = typename Source::Element;
  extern __shared__ __align__(128) char memory[];
  Ring<RowsNote> ring(memory, a.ring);
  wait_for_previous_kernel();
  allow_next_kernel();
  const uint32_t tiles = a.tiling.tiles;
  if (ring.fills()) {
    for (uint32_t number = ring.number(); number < tiles; number += ring.pairs()) {
      const Tile tile = a.tiling.tile(number);
      const Offsets offsets = a.kept.at(tile.output);
      const char* begin = a.source.address(offsets.in);
      const char* end = begin + (tile.outputs - 1) * a.ring.pitch + a.length * sizeof(Element);
      ring.wait_until_free();
      ring.fill_with({offsets.out, tile.partial, static_cast<int>(tile.outputs), past<kLine>(begin)}, begin, end, a.input);
    }
    return;
  }
  const int64_t out_stride = a.kept.rank ? a.kept.dims[a.kept.rank - 1].out : 0;  // a tile lies in one run of outputs
  const Rows short_rows(static_cast<int>(a.length), a.ring.pitch);
  for (uint32_t number = ring.number(); number < tiles; number += ring.pairs()) {
    const char* stage = ring.wait_until_full();
    const RowsNote note = ring.note();
    const char* p = stage + note.offset;
    for (int row = 0; row < note.rows; row += Rows::kRows, p += Rows::kRows * a.ring.pitch) {
      Acc results[Rows::kResults];
      short_rows.sum(p, note.rows - row, results);
#pragma unroll
      for (int r = 0; r < Rows::kResults; ++r) {
        const int mine = row + Rows::row(r);
        if (Rows::writes() && mine < note.rows)
          a.output.template write_at<!divided_by_join(Kernel::ring_rows, sizeof(Element))>(
              note.place + mine * out_stride, note.partial + mine * a.tiling.partial_output_stride, results[r]);
      }
    }
    ring.release();
  }
#endif
}

}  // namespace gpureduce::cuda
