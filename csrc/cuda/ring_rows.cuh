// Reductions whose fastest dim in memory is reduced, through a ring of stages in shared memory: rows at any address, rows too
// short to be loaded by whole warps, and rows in pieces.
#pragma once

#include "chunk.cuh"
#include "ring.cuh"

namespace gpureduce::cuda {

// --- reading a stage ------------------------------------------------------------------------------------------------------

// The sum of up to a chunk: `count` elements from `p` on. What is read beyond their end is in the stage.
template <class Element, class Acc>
__device__ __forceinline__ Acc staged_chunk(const char* p, int count) {
  const char* const from = align_down<kGranule>(p);
  const int shift = past<kGranule>(p) / static_cast<int>(sizeof(Element));
  return shifted_chunk<kLoads / 2, Element, Acc>(shift, count, [=](int position) __attribute__((always_inline)) {
    return Staged<kGranule, true, Element>::read(from + position * static_cast<int>(sizeof(Element)));
  });
}

// Short rows, every element of which is a leaf: kWidth threads a row, a read each, and 32 / kWidth rows side by side; or
// kGroups times 32 reads a row. A thread reads kLoads times, from other rows or groups; then the values change hands, so that
// as many threads as there are values have one each.
template <int kBytes, bool kAligned, int kWidth, int kGroups, class Element>
struct ShortRows {
  using From = Staged<kBytes, kAligned, Element>;
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
        mine.bits = masked(mine.bits, part[i % kGroups].keep, part[i % kGroups].other);
        RowLanes<Element, Acc, V> lanes;
        lanes.start(mine);
        v[i] = lanes.join();
      }
      results[r] = warp_join(warp_transpose_join<kBatch, kWidth>(v), 1, kGroups);
    }
  }

 private:
  template <class Word>
  static __device__ __forceinline__ Word masked(Word x, Word keep, Word other) {
    return static_cast<Word>((x & keep) | other);
  }
  static __device__ __forceinline__ uint2 masked(uint2 x, uint2 keep, uint2 other) {
    return {(x.x & keep.x) | other.x, (x.y & keep.y) | other.y};
  }
  static __device__ __forceinline__ uint4 masked(uint4 x, uint4 keep, uint4 other) {
    return {(x.x & keep.x) | other.x, (x.y & keep.y) | other.y, (x.z & keep.z) | other.z, (x.w & keep.w) | other.w};
  }
};

// --- the kernels ----------------------------------------------------------------------------------------------------------

struct RowsNote {
  int64_t place;    // of the first row's result
  int64_t partial;  // or partial sum
  int32_t rows;
  int32_t offset;  // in the stage
};

// A pair of warps takes tiles, strided by all pairs of the grid. A stage is one tile: as many rows as it holds, as they stand
// in memory.
template <int kBytes, bool kAligned, int kWidth, int kGroups, class Source, class Acc>
__global__ void __launch_bounds__(2 * kMaxRingPairs * kWarp, kRingBlocks)
    ring_short_rows(const __grid_constant__ Args<Source, Acc> a) {
#if __CUDA_ARCH__ >= 900
  using Element = typename Source::Element;
  using Rows = ShortRows<kBytes, kAligned, kWidth, kGroups, Element>;
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
          a.output.write_at(note.place + mine * out_stride, note.partial + mine * a.tiling.partial_output_stride, results[r]);
      }
    }
    ring.release();
  }
#endif
}

struct ChunkNote {
  int64_t output;   // first row of the tile
  int64_t partial;  // of that row
  int32_t count;    // elements
  int16_t offset;   // in the stage
  int8_t number;    // of the chunk or row in the tile
  int8_t rows;      // how many results the tile has, if it ends here
  bool last;        // nothing follows
};

// Blocks a multiprocessor: sums of 8 bytes take the registers of two.
template <class Element, class Acc>
constexpr int kChunkBlocks = sizeof(Lane<Element, Acc>) > 4 ? 1 : kRingBlocks;

// A stage is a chunk of a row, with what is left of the row if that is little; or the whole of a shorter row. A tile is up to
// 32 neighbouring chunks of a row, or up to 32 neighbouring rows.
template <bool nested, class Source, class Acc>
__global__ void __launch_bounds__(2 * kMaxRingPairs * kWarp, (kChunkBlocks<typename Source::Element, Acc>))
    ring_chunks(const __grid_constant__ Args<Source, Acc> a) {
#if __CUDA_ARCH__ >= 900
  using Element = typename Source::Element;
  constexpr int kSize = sizeof(Element);
  extern __shared__ __align__(128) char memory[];
  Ring<ChunkNote> ring(memory, a.ring);
  wait_for_previous_kernel();
  allow_next_kernel();
  const uint32_t tiles = a.tiling.tiles;
  const int lane = threadIdx.x % kWarp;
  const bool rows = a.length <= kChunk;
  if (ring.number() >= tiles) return;
  if (ring.fills()) {
    for (uint32_t number = ring.number(); number < tiles; number += ring.pairs()) {
      const Tile tile = a.tiling.tile(number);
      const int parts = static_cast<int>(rows ? tile.outputs : (tile.leaves + kLanes - 1) / kLanes);
      int64_t first = tile.leaf / kLanes * kChunk, row = a.kept.at(tile.output).in;
      for (int s = 0; s < parts; ++s) {
        const int64_t left = a.length - first;
        const bool rest = !nested && !rows && s == parts - 2 && left <= kChunk + kRingRest;
        const int count = static_cast<int>(left < kChunk || rest ? left : kChunk);
        const bool ends = s + rest == parts - 1;
        ChunkNote note{tile.output, tile.partial, count, 0, static_cast<int8_t>(s)};
        note.rows = static_cast<int8_t>(!ends ? 0 : rows ? parts : 1);
        note.last = ends && number + ring.pairs() >= tiles;
        if constexpr (nested) {  // the pieces of several runs, one a lane, become one in shared memory
          const int64_t run = static_cast<uint32_t>(first) / static_cast<uint32_t>(a.ring.run) + lane;
          const int64_t begin = run * a.ring.run, end = begin + a.ring.run, last = first + count;
          const int64_t from = begin < first ? first : begin, to = end < last ? end : last;
          const char* p = a.source.address(row + a.reduced.at(from < to ? from : 0).in);
          ring.wait_until_free();
          ring.fill_from_lanes(note, static_cast<int>(from - first) * kSize, p, from < to ? p + (to - from) * kSize : p,
                               a.input);
        } else {
          const char* p = a.source.address(row + first);
          note.offset = static_cast<int16_t>(past<kLine>(p));
          ring.wait_until_free();
          ring.fill_with(note, p, p + count * kSize, a.input);
        }
        if (ends) break;
        if (rows) row = a.kept.at(tile.output + s + 1).in;
        else first += kChunk;
      }
    }
    return;
  }
  Acc mine = padding<Acc>();  // lane l has the sum of the tile's chunk or row l
  for (bool last = false; !last;) {
    const char* p = ring.wait_until_full();
    const ChunkNote note = ring.note();
    last = note.last;
    p += note.offset;
    int number = note.number;
    for (int left = note.count; left > 0; left -= kChunk, p += kChunk * kSize, ++number) {
      const Acc v = staged_chunk<Element, Acc>(p, left < kChunk ? left : kChunk);
      if (lane == number) mine = v;
    }
    ring.release();
    if (note.rows) {
      if (!rows) mine = warp_join(mine);
      if (lane < note.rows)
        a.output.write(a.kept, note.output + lane, note.partial + lane * a.tiling.partial_output_stride, mine);
      mine = padding<Acc>();
    }
  }
#endif
}

}  // namespace gpureduce::cuda
