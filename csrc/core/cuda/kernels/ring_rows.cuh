// Rows too short to be loaded by whole warps, through a ring of stages in shared memory.
//
// For example rows of 101 bfloat16, 202 bytes apart. A tile is 32 rows, 6464 bytes, which one bulk copy brings into a stage
// while the warp works on another one. Thread 1 takes row 1, which begins in the middle of a word: it reads aligned words, and
// a funnel shift makes each word of the row from two of them. It joins 6 runs of 8 words, which are 96 elements, then a run of
// 2 words, then the last word, which is one element and padding. Each of the 32 threads writes the result of its row.
#pragma once

#include "ring.cuh"

namespace gpureduce::cuda {

// Reads the elements at any address in shared memory, word by word.
template <class Element>
struct Words {
  static_assert(rings_rows(sizeof(Element)));
  static constexpr int V = 4 / sizeof(Element);
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
};

// Short rows: every element is a leaf. A thread takes a whole row, word by word, so that no value moves between threads. If
// rows are not an even number of words apart, at most four threads meet in a bank.
template <class Element>
struct WholeRows {
  static constexpr int V = Words<Element>::V;
  static constexpr int kLogRun = 3, kLogRuns = 5;  // log2 of the words read at once, and of the most runs of them
  static_assert(kWholeRowWords <= 1 << (kLogRun + kLogRuns));

  int whole, rest, pitch;  // words before the last one, elements in the last one, bytes between rows

  // Rows of `count` elements, `pitch` bytes apart.
  __device__ __forceinline__ WholeRows(int count, int pitch) : whole((count - 1) / V), rest(count - whole * V), pitch(pitch) {}

  // The sum of the thread's row, one of the warp's 32 rows from `p` on. If only `rows` exist, the other threads sum the last
  // one.
  template <class Acc>
  __device__ __forceinline__ Acc sum(const char* p, int rows) const {
    using LaneSum = Lane<Element, Acc>;
    Words<Element> words(p + min(static_cast<int>(threadIdx.x % kWarp), rows - 1) * pitch);
    LaneSum waiting[kLogRuns], left[kLogRun];
    for (int run = 0; run < whole >> kLogRun; ++run) {
      LaneSum v = take<kLogRun, LaneSum>(words);
      carry(waiting, v, run);
    }
    take_rest<kLogRun - 1>(words, left);
    // The last word is the right neighbour of all waiting sums.
    Sums<LaneSum> last;
    last.start(keep(words.next(), 0, rest));
    LaneSum v = last.join();
#pragma unroll
    for (int level = 0; level < kLogRun; ++level)
      if (whole >> level & 1) v = left[level] + v;
#pragma unroll
    for (int level = 0; level < kLogRuns; ++level)
      if (whole >> kLogRun >> level & 1) v = waiting[level] + v;
    return v;
  }

 private:
  template <class LaneSum>
  using Sums = RowLanes<Element, LaneSum, V>;

  // The sum of the next 1 << kLogCount words.
  template <int kLogCount, class LaneSum>
  static __device__ __forceinline__ LaneSum take(Words<Element>& words) {
    constexpr int kCount = 1 << kLogCount;
    Vector<Element, V> x[kCount];
#pragma unroll
    for (auto& word : x) word = words.next();
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

  // Words after the last whole run: four, two and one, by the bits of their number.
  template <int kLevel, class LaneSum>
  __device__ __forceinline__ void take_rest(Words<Element>& words, LaneSum (&left)[kLogRun]) const {
    if (whole >> kLevel & 1) left[kLevel] = take<kLevel, LaneSum>(words);
    if constexpr (kLevel > 0) take_rest<kLevel - 1>(words, left);
  }
};

struct RowsNote {
  int64_t place;    // of the first row's result
  int64_t partial;  // of its partial sum
  int32_t rows;
  int32_t offset;  // in the stage
};
static_assert(Ring<RowsNote>::kOverhead == kRingStageBytes);

// A warp takes tiles, strided by all warps of the grid; neighbouring blocks take neighbouring tiles. A stage holds one tile:
// rows as they lie in memory.
template <class Source, class Acc>
__global__ void __launch_bounds__(kMaxRingWarps* kWarp, kRingBlocks) ring_rows(const __grid_constant__ Args<Source, Acc> a) {
#if __CUDA_ARCH__ >= 900
  using Element = typename Source::Element;
  extern __shared__ __align__(128) char memory[];
  Ring<RowsNote> ring(memory, a.ring);
  const uint32_t warps = blockDim.x / kWarp, first = blockIdx.x + threadIdx.x / kWarp * gridDim.x, step = warps * gridDim.x;
  const int64_t ahead = int64_t{step} * a.ring.stages, tiles = a.tiling.tiles;
  const int64_t out_stride = a.kept.rank ? a.kept.dims[a.kept.rank - 1].out : 0;  // a tile lies in one run of outputs
  const WholeRows<Element> whole_rows(static_cast<int>(a.length), a.ring.pitch);
  wait_for_previous_kernel();
  allow_next_kernel();
  // Rounds before the first tile only fill the ring.
  for (int64_t number = first - ahead; number < tiles; number += step, ring.next()) {
    if (number >= 0) {
      const char* stage = ring.wait_until_full();
      const RowsNote note = ring.note();
      const char* p = stage + note.offset;
      for (int row = 0; row < note.rows; row += kWarp, p += kWarp * a.ring.pitch) {
        const Acc sum = whole_rows.template sum<Acc>(p, note.rows - row);
        const int thread_row = row + static_cast<int>(threadIdx.x % kWarp);
        if (thread_row < note.rows)
          a.output.write_at(Offsets{0, note.place + thread_row * out_stride},
                            note.partial + thread_row * a.tiling.partial_output_stride, sum);
      }
    }
    if (number + ahead < tiles) {
      const Tile tile = a.tiling.tile(static_cast<uint32_t>(number + ahead));
      const Offsets offsets = a.kept.at(tile.output);
      const char* begin = a.source.address(offsets.in);
      const char* end = begin + (tile.outputs - 1) * a.ring.pitch + a.length * sizeof(Element);
      ring.fill_with({offsets.out, tile.partial, static_cast<int>(tile.outputs), past<kLine>(begin)}, begin, end, a.input,
                     a.source.policy);
    }
  }
#endif
}

}  // namespace gpureduce::cuda
