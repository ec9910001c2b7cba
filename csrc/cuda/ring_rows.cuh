// Rows too short to be loaded by whole warps, through a ring of stages in shared memory.
#pragma once

#include "ring.cuh"

namespace gpureduce::cuda {

// Short rows, every element of which is a leaf: kWidth threads a row, a read each, and 32 / kWidth rows side by side; or
// kGroups times 32 reads a row. A thread reads kLoads times, from other rows or groups; then the values change hands, so that
// as many threads as there are values have one each.
template <int kWidth, int kGroups, class Element>
struct ShortRows {
  using From = Staged<Element>;
  using Bits = typename From::Read::Bits;
  static constexpr int V = From::V, kSide = kWarp / kWidth;
  static constexpr int kRows = kLoads * kSide / kGroups;  // at once
  static constexpr int kBatch = kWidth < kLoads ? kWidth : kLoads, kResults = kLoads / kBatch;
  static_assert(kGroups == 1 || (kWidth == kWarp && kGroups <= kLoads));

  struct Part {
    int offset;        // of the thread's read in a row
    Bits keep, other;  // which of its bits are elements of the row, and what stands for the others
  };
  Part part[kGroups];
  int pitch;

  // Rows of `count` elements, `pitch` bytes apart.
  __device__ __forceinline__ ShortRows(int count, int pitch) : pitch(pitch) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int e = (threadIdx.x % kWidth + g * kWarp) * V;
      part[g].offset = e < count ? e * static_cast<int>(sizeof(Element)) : 0;
      Vector<Element, V> ones, rest;
      memset(&ones, 0xff, sizeof(ones));
      const Vector<Element, V> padding = padding_vector<Element, V>();
      memset(&rest, 0, sizeof(rest));
      Element none;
      memset(&none, 0, sizeof(none));
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (e + j < count) continue;
        ones.set(j, none);
        rest.set(j, padding[j]);
      }
      part[g].keep = ones.bits;
      part[g].other = rest.bits;
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
        auto& mine = x[r * kBatch + i];
        mine.bits = (mine.bits & part[i % kGroups].keep) | part[i % kGroups].other;
        RowLanes<Element, Acc, V> lanes;
        lanes.start(mine);
        v[i] = lanes.join();
      }
      results[r] = warp_join(warp_transpose_join<kBatch, kWidth>(v), 1, kGroups);
    }
  }
};

struct RowsNote {
  int64_t place;    // of the first row's result
  int64_t partial;  // or partial sum
  int32_t rows;
  int32_t offset;  // in the stage
};

// A pair of warps takes tiles, strided by all pairs of the grid. A stage is one tile: as many rows as it holds, as they stand
// in memory.
template <int kWidth, int kGroups, class Source, class Acc>
__global__ void __launch_bounds__(2 * kMaxRingPairs * kWarp, kRingBlocks)
    ring_short_rows(const __grid_constant__ Args<Source, Acc> a) {
#if __CUDA_ARCH__ >= 900
  using Element = typename Source::Element;
  using Rows = ShortRows<kWidth, kGroups, Element>;
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
