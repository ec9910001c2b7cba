// Exact sums of segments: the kernels for parts of segments, and the one that clears and rounds the sums of cut segments.
//
// For example 6000 rows of 64 columns of float32, in segments of 3, 1, 0 and 5996 rows, and tiles of 1024 positions. The
// segments have the positions 0, 11, 20 and 28 (segments/places.cuh, with a weight of 8). A warp takes 32 columns of a tile, a
// thread one column. In tile 0 a thread loads the 4 rows of the first two segments at once. It adds each segment's rows as
// integers, in one window (tile.cuh), and writes two rounded sums. The third segment is empty: its sum is 0. The last one
// has more rows than a tile, so it is cut: tile 0 adds its first 996 rows, and tiles 1 to 5 add the others. Each tile adds its
// integers to the digits of *slot* 0, because the segment begins in the rows 0-1023: slot i is for the rows from 1024 i on.
// Integers have no order. The last kernel rounds the digits.
//
// With one column the 32 threads of a warp lie along the rows, of up to 32 short segments or of one long segment.
#pragma once

#include "../segments/places.cuh"
#include "exact.cuh"

namespace gpureduce::cuda {

constexpr int kLogThreadRows = 3;  // a segment has no more threads than it needs, if each adds so many rows

// The threads of a warp lie side by side along columns, and below each other along rows.
template <int kRank>
struct ExactSegmentArgs {
  ExactAny::Input input;
  uint64_t policy;
  int8_t log_width;    // threads side by side
  SegmentTiles tiles;  // a segment of more rows than a tile is cut
  int64_t columns, column_tiles;
  int64_t pitch;   // from a row to the next one
  int64_t* slots;  // digits, then what was seen, each `columns` apart; null if no segment is cut
  ExactResult result;
  Nest<kRank> kept;
};

// A thread's share of a part of a segment: rows y, y + threads, ...
struct ExactPart {
  int64_t segment, begin;  // the row that it begins with
  int rows, y, log_threads;
  bool exists, whole;

  __device__ __forceinline__ int count() const { return exists ? (rows - y + (1 << log_threads) - 1) >> log_threads : 0; }
};

// Whole segments of a few rows each: a thread takes 1 << log_each of them. Thread i of the warp has the facts of segment
// `first` + i: its begin relative to `begin`, whether it exists, and its rows.
struct ExactTiny {
  int64_t first, begin;
  int log_each, facts;
};
constexpr int kLogTinyRows = 3;  // rows of a thread

// A warp's parts of segments. It takes as many short ones at once as its threads allow. `tiny` is called with tiny segments
// first, and may refuse them.
template <class Tiny, class F>
__device__ __forceinline__ void for_each_part(const SegmentTiles& tiles, int64_t tile, int log_width, Tiny tiny, F f) {
  const int lane = threadIdx.x % kWarp, y = lane >> log_width, log_height = 5 - log_width;
  const int64_t low = tile * tiles.tile, high = low + tiles.tile, positions[2] = {low, high};
  int64_t found[2];
  tiles.first_at(positions, found);
  const int64_t first = tile == 0 ? 0 : found[0], last = tile + 1 == tiles.tiles ? tiles.segments : found[1];
  // A cut segment that begins in another tile comes first.
  int64_t next = first > 0 && tiles.place(first - 1).length > tiles.tile ? first - 1 : first;
  SegmentEnds ends = tiles.ends(next + lane);
#pragma unroll 1
  while (next < last || next < first) {
    const int64_t number = next + lane;  // each thread looks at one
    const SegmentPlace place = tiles.place(number, ends);
    const bool own = number >= first && number < last, whole = place.length <= tiles.tile;
    if (own) tiles.check(ends);
    const int64_t from = whole ? 0 : min(max(low - place.position, int64_t{0}), place.length);
    const int64_t to = whole ? place.length : min(max(high - place.position, from), place.length);
    const bool exists = own || (number < first && to > from);
    const int64_t begin = place.begin + from;
    const int rows = exists ? static_cast<int>(to - from) : 0;

    ExactTiny some{next, __shfl_sync(~0u, begin, 0), min(kLogTinyRows, log_width), 0};
    // Segments lie side by side, but for offsets that someone changes meanwhile.
    const bool is_near = static_cast<uint64_t>(begin - some.begin) <= kWarp << kLogTinyRows;
    const auto fit = [&](int log_each) {
      return lane >> (log_height + log_each) != 0 || !exists || (whole && is_near && rows <= 1 << (kLogTinyRows - log_each));
    };
    while (some.log_each > 0 && !__all_sync(~0u, fit(some.log_each))) --some.log_each;
    if (some.log_each > 0) {
      if (exists) some.facts = static_cast<int>(begin - some.begin) << 5 | 1 << 4 | rows;
      const int64_t after = next + (int64_t{1} << (log_height + some.log_each));
      const SegmentEnds ends_after = tiles.ends(after + lane);
      if (tiny(some)) {
        next = after;
        ends = ends_after;
        continue;
      }
    }
    const int log_wanted = rows <= 1 << kLogThreadRows ? 0 : 32 - __clz((rows - 1) >> kLogThreadRows);
    int log_parts = log_height;  // of segments at once
    while (log_parts > 0 && !__all_sync(~0u, lane >> log_parts != 0 || log_wanted + log_parts <= log_height)) --log_parts;

    ExactPart part;
    part.log_threads = log_height - log_parts;
    const int group = y >> part.log_threads;
    part.y = y & ((1 << part.log_threads) - 1);
    part.segment = next + group;
    part.begin = __shfl_sync(~0u, begin, group);
    const int facts = __shfl_sync(~0u, rows << 2 | exists << 1 | whole, group);
    part.rows = facts >> 2;
    part.exists = facts >> 1 & 1;
    part.whole = facts & 1;
    next += int64_t{1} << log_parts;
    ends = tiles.ends(next + lane);  // is there when it is needed
    f(part);
  }
}

// A warp's tile and column. Neighbouring warps take neighbouring columns.
struct ExactSegmentPlace {
  int64_t tile, column;
  bool valid;  // the tile exists
};
template <int kRank>
__device__ __forceinline__ ExactSegmentPlace segment_place(const ExactSegmentArgs<kRank>& a) {
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp, tile = warp / a.column_tiles;
  const int64_t column = ((warp - tile * a.column_tiles) << a.log_width) + (threadIdx.x & ((1 << a.log_width) - 1));
  return {tile, column, tile < a.tiles.tiles};
}

// --- slots ----------------------------------------------------------------------------------------------------------------

// Adds to a word of a slot.
__device__ __forceinline__ void add_to_word(int64_t* word, int64_t n) {
  if (n != 0) atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(n));
}

// The slot of a cut segment, for one column.
template <class Range>
struct ExactSlot {
  int64_t *first, columns;

  __device__ __forceinline__ void see(uint32_t seen) const {
    atomicOr(reinterpret_cast<unsigned int*>(first + Range::kDigits * columns), seen);  // the low half of an int64
  }
  // Adds n * 2^bit, as Digits::add() does.
  __device__ __forceinline__ void add(int64_t n, int bit) const {
    add_by_words(n, bit, [&](int i, int64_t word) { add_to_word(first + i * columns, word); });
  }
};

// The slot of a part's segment.
template <class Range, int kRank>
__device__ __forceinline__ ExactSlot<Range> slot_of(const ExactSegmentArgs<kRank>& a, const ExactPart& part, int64_t column) {
  const int64_t slot = a.tiles.place(part.segment).begin / a.tiles.tile;
  return {a.slots + slot * kExactWords<Range> * a.columns + column, a.columns};
}
// Writes the rounded sum of a whole segment, or adds a part's sum to the slot.
template <class Range, int kRank>
__device__ __noinline__ void finish_part(exact::FixedPoint<Range>& sum, const ExactSegmentArgs<kRank>& a, const ExactPart& part,
                                         int64_t column, int64_t out) {
  if (part.whole) return store_exact(sum, a.result, out + part.segment * a.tiles.result_pitch);
  const ExactSlot<Range> slot = slot_of<Range>(a, part, column);
  slot.see(sum.seen);
  sum.carry();  // a slot takes 2^31 carried numbers
#pragma unroll 1
  for (int i = 0; i < Range::kDigits; ++i) add_to_word(slot.first + i * a.columns, sum.digits[i]);
}

struct ExactSegmentSlots {
  SegmentTiles tiles;  // of rows: their weight is 0
  int64_t columns, column_tiles;
  bool rounds;  // otherwise slots are cleared
  int64_t* slots;
  ExactResult result;
  Nest<kMaxRank> kept;
};

// A warp takes 32 columns of a slot, if a cut segment begins in its tile of rows. That is the last segment that begins there.
template <class Range>
__global__ void __launch_bounds__(kExactAnyThreads) exact_segment_slots(const __grid_constant__ ExactSegmentSlots a) {
  const int64_t warp = (int64_t{blockIdx.x} * kExactAnyThreads + threadIdx.x) / kWarp, tile = warp / a.column_tiles;
  const int64_t column = (warp - tile * a.column_tiles) * kWarp + threadIdx.x % kWarp;
  wait_for_previous_kernel();
  allow_next_kernel();
  if (tile >= a.tiles.tiles) return;
  const int64_t positions[1] = {(tile + 1) * a.tiles.tile};
  int64_t found[1];
  a.tiles.first_at(positions, found);
  const SegmentPlace place = a.tiles.place(found[0] - 1);
  if (found[0] == 0 || place.length <= a.tiles.tile || place.begin < tile * a.tiles.tile || column >= a.columns) return;
  int64_t* const slot = a.slots + tile * kExactWords<Range> * a.columns + column;
  if (!a.rounds) {
#pragma unroll 1
    for (int i = 0; i < kExactWords<Range>; ++i) slot[i * a.columns] = 0;
    return;
  }
  exact::FixedPoint<Range> sum;
#pragma unroll 1
  for (int i = 0; i < Range::kDigits; ++i) sum.digits[i] = slot[i * a.columns];
  sum.seen = static_cast<uint32_t>(slot[Range::kDigits * a.columns]);
  store_exact(sum, a.result, a.kept.at(column).out + place.number * a.tiles.result_pitch);
}

// --- dtypes that kernels are compiled for ---------------------------------------------------------------------------------

template <class T>
constexpr int kSegmentThreads = exact_threads(sizeof(T));
constexpr int kSegmentResident = 6;  // blocks per multiprocessor that registers must allow
constexpr int kSegmentLoads = 8;
// The most elements of a part, as a logarithm: more would leave too narrow a window, and of float64 too large a scale.
template <class T>
constexpr int kMostLogTile = exact_most_log_tile(sizeof(T));

template <class T>
__global__ void __launch_bounds__(kSegmentThreads<T>, kSegmentResident)
    exact_segments(const __grid_constant__ ExactSegmentArgs<kFastRank> a) {
  using Range = typename ExactFormat<T>::Range;
  constexpr int kThreads = kSegmentThreads<T>, K = kSegmentLoads, V = sizeof(T) == 2 ? 2 : 1, kDigits = Range::kDigits;
  __shared__ int64_t memory[kDigits * kThreads];
  const Digits digits{memory + threadIdx.x, kThreads};
  const ExactSegmentPlace at = segment_place(a);
  const int log_adds = 31 - __clz(static_cast<int>(a.tiles.tile)), width = 1 << a.log_width;
  const Nothing<T> nothing(a.input.negate);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (!at.valid) return;
  const bool has_column = at.column < a.columns;
  const auto place = place_of(a.kept, has_column ? at.column : 0);
  const T* const data = static_cast<const T*>(a.input.data) + place.in;

  // Adds tiny segments, if all threads have a window for theirs. A thread loads all elements before it needs the first.
  const auto add_tiny = [&](const ExactTiny& tiny) {
    constexpr int kRows = 1 << kLogTinyRows;
    const int first = threadIdx.x % kWarp >> a.log_width << tiny.log_each, log_rows = kLogTinyRows - tiny.log_each;
    const T* const rows = data + tiny.begin * a.pitch;
    Vector<T, V> x[kRows / V];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int facts = __shfl_sync(~0u, tiny.facts, first + (k >> log_rows)), row = k & ((1 << log_rows) - 1);
      const bool has = has_column && row < (facts & 0xf);
      const T* const p = has ? rows + ((facts >> 5) + row) * a.pitch : data;
      x[k / V].set(k % V, load_vector_if<T, 1>(has, p, a.policy, nothing.template bits<1>())[0]);
    }
    Exponents<T> exponents;
#pragma unroll
    for (int k = 0; k < kRows / V; ++k) exponents.add(x[k]);
    Window<T> window;
    const bool fits = window.place(exponents.highest(), exponents.lowest(), kLogTinyRows, a.input.negate);
    if (!__all_sync(~0u, fits)) return false;
    WindowSum<T> sums[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) window.add(sums[k], x[k / V][k % V], kLogTinyRows);
#pragma unroll
    for (int level = 0; level < kLogTinyRows; ++level) {
      if (log_rows <= level) break;
#pragma unroll
      for (int k = 0; k < kRows >> (level + 1); ++k) {
        sums[k] = sums[2 * k];
        sums[k] += sums[2 * k + 1];
      }
    }
    static_assert(kDigits >= (sizeof(T) == 8 ? 2 : 1) * kRows);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      digits[k] = sums[k].low;
      if constexpr (sizeof(T) == 8) digits[kRows + k] = sums[k].high;
    }
#pragma unroll 1
    for (int i = 0; i < 1 << tiny.log_each; ++i) {
      const int facts = __shfl_sync(~0u, tiny.facts, first + i);
      if (!has_column || !(facts >> 4 & 1)) continue;
      WindowSum<T> sum;
      sum.low = digits[i];
      if constexpr (sizeof(T) == 8) sum.high = digits[kRows + i];
      uint32_t seen = facts & 0xf ? exact::kOther : 0;
      if (sum.zero() && seen) {  // -0 if all elements are
        seen = exact::kMinusZero;
        for (int row = 0; row < (facts & 0xf); ++row)
          if (nothing.differs(load_vector<T, 1>(rows + ((facts >> 5) + row) * a.pitch, a.policy))) seen = exact::kOther;
      }
      const int64_t index = place.out + (tiny.first + first + i) * a.tiles.result_pitch;
      store_sum(a.result, index, sum, window, kLogTinyRows, seen);
    }
    return true;
  };

  for_each_part(a.tiles, at.tile, a.log_width, add_tiny, [&](const ExactPart& part) {
    const int count = has_column ? part.count() : 0, end = width << part.log_threads;
    const int64_t step = a.pitch << part.log_threads;
    const T* p = data + (part.begin + part.y) * a.pitch;
    Window<T> window;  // all threads of a segment and column have the same one
    WindowSum<T> sum;
    uint32_t seen[1] = {}, other = 0;
    bool used = false;  // the digits
    int adds = 0;       // to a digit, one by one
    const auto use = [&] {
      if (!used) digits.clear(kDigits);
      used = true;
    };
    const auto flush = [&] {
      if (sum.zero()) return;
      use();
      window.split(sum, log_adds, [&](int64_t n, int bit) { digits.add(n, bit); });
      sum = {};
    };
#pragma unroll 1
    for (int i = 0; __any_sync(~0u, i < count); i += K * V, p += K * V * step) {
      Vector<T, V> x[K];
      if (__all_sync(~0u, i + K * V <= count)) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
          for (int j = 0; j < V; ++j) x[k].set(j, load_vector<T, 1>(p + (k * V + j) * step, a.policy)[0]);
        }
      } else {
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
          for (int j = 0; j < V; ++j) {
            const int e = k * V + j;
            const bool has = i + e < count;
            x[k].set(j, load_vector_if<T, 1>(has, has ? p + e * step : data, a.policy, nothing.template bits<1>())[0]);
          }
        }
      }
      Exponents<T> exponents;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        exponents.add(x[k]);
        other |= nothing.differs(x[k]);
      }
      int highest = exponents.highest(), lowest = exponents.lowest();
      bool fits = window.has(highest, lowest);
      if (!__all_sync(~0u, fits)) {
#pragma unroll 1
        for (int lanes = width; lanes < end; lanes *= 2) {
          highest = max(highest, __shfl_xor_sync(~0u, highest, lanes));
          lowest = min(lowest, __shfl_xor_sync(~0u, lowest, lanes));
        }
        Window<T> moved;
        fits = window.has(highest, lowest);
        if (!fits && moved.place(highest, lowest, log_adds, a.input.negate)) {
          flush();
          window = moved;
          fits = true;
        }
      }
      if (fits) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
          for (int j = 0; j < V; ++j) window.add(sum, x[k][j], log_adds);
        }
      } else {
        use();
        adds += K * V;
        if (adds > kExactAdds) {
          digits.carry(kDigits);
          adds = K * V;
        }
        add_elements(x, [&](int) { return digits; }, seen, {a.input.negate, false});
      }
    }
    // Joins the threads of a segment and column. What was seen, and whether any used its digits.
    constexpr uint32_t kUsed = 0x100;
    uint32_t facts = seen[0] | (other ? exact::kOther : part.rows > 0 ? exact::kMinusZero : 0u) | (used ? kUsed : 0u);
    WindowSum<T> all = sum;
#pragma unroll 1
    for (int lanes = width; lanes < end; lanes *= 2) {
      facts |= __shfl_xor_sync(~0u, facts, lanes);
      add_other_lane(all, lanes);
    }
    const bool any_used = facts & kUsed, stores = has_column && part.exists && part.y == 0;
    if (any_used) {
      use();
      flush();
      digits.carry(kDigits);
    }
    __syncwarp();
    if (stores && any_used) {
      exact::FixedPoint<Range> number;
      number.seen = facts & ~kUsed;
#pragma unroll 1
      for (int d = 0; d < kDigits; ++d) {
        number.digits[d] = 0;
        for (int lanes = 0; lanes < end; lanes += width) number.digits[d] += memory[d * kThreads + threadIdx.x + lanes];
      }
      finish_part(number, a, part, at.column, place.out);
    } else if (stores && part.whole) {
      store_sum(a.result, place.out + part.segment * a.tiles.result_pitch, all, window, log_adds, facts);
    } else if (stores) {
      const ExactSlot<Range> slot = slot_of<Range>(a, part, at.column);
      slot.see(facts);
      window.split(all, log_adds, [&](int64_t n, int bit) { slot.add(n, bit); });
    }
    __syncwarp();  // the digits are used again
  });
}

// --- everything else ------------------------------------------------------------------------------------------------------

// Elements of any dtype and layout are added one by one, by each thread to a number of its own.
template <class Range>
__global__ void __launch_bounds__(kExactAnyThreads) exact_segments_any(const __grid_constant__ ExactSegmentArgs<kMaxRank> a) {
  const ExactSegmentPlace at = segment_place(a);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (!at.valid) return;
  const bool has_column = at.column < a.columns;
  const auto place = a.kept.at(has_column ? at.column : 0);
  const auto none = [](const ExactTiny&) { return false; };
  for_each_part(a.tiles, at.tile, a.log_width, none, [&](const ExactPart& part) {
    exact::FixedPoint<Range> sum;
    sum.clear();
    const int count = has_column ? part.count() : 0;
    const int64_t first = place.in + (part.begin + part.y) * a.pitch, step = a.pitch << part.log_threads;
    for (int i = 0; i < count; ++i) exact::add(sum, element_any(a.input, first + i * step));
    sum.carry();
    __syncwarp();
#pragma unroll 1
    for (int lanes = 1 << a.log_width; lanes < 1 << a.log_width << part.log_threads; lanes *= 2) {
#pragma unroll 1
      for (int i = 0; i < Range::kDigits; ++i) sum.digits[i] += __shfl_xor_sync(~0u, sum.digits[i], lanes);
      sum.seen |= __shfl_xor_sync(~0u, sum.seen, lanes);
    }
    if (has_column && part.exists && part.y == 0) finish_part(sum, a, part, at.column, place.out);
    __syncwarp();
  });
}

}  // namespace gpureduce::cuda
