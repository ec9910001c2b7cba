// Exact sums: kernels for long rows, short rows, columns and everything else, and the one that joins parts.
//
// For example 10 rows of 2^20 float32, on a GPU with 132 multiprocessors. Each row is cut into 128 parts of 8 tiles, of 1024
// elements, and the 4 warps of a block take a part. A thread adds 32 elements of a tile to an int64, whose bits mean the same
// in all threads of its warp (tile.cuh). At the part's end the warp adds its 32 integers to a fixed-point number of 10
// digits, which lie in the registers of lanes 0-9. Shared memory joins the numbers of the 4 warps, and the block writes 10
// digits and what they do not show (infinities and signs of zeros). The second kernel adds the 128 parts of each row, carries
// and rounds.
#pragma once

#include "../core/cuda/early.cuh"
#include "../core/plan/exact.h"
#include "source.cuh"

namespace gpureduce::cuda {

// The place of an index in dims. Two dims and more are one piece of code.
template <class Place>
using DimsOf = Nest<kFastRank, Place>;
using Dims = DimsOf<int64_t>;
template <class Place>
__device__ __noinline__ Spot<Place> far_place(const DimsOf<Place>& dims, int64_t index) {
  return dims.at(index);
}
template <class Place>
__device__ __forceinline__ Spot<Place> place_of(const DimsOf<Place>& dims, int64_t index) {
  if (dims.rank == 0) return {};
  if (dims.rank == 1) return {dims.dims[0].in * index, dims.dims[0].out * index};
  return far_place(dims, index);
}

// --- loads of rows --------------------------------------------------------------------------------------------------------

template <bool kVectors, int K, int V, class T, class Source, class Place>
__device__ __forceinline__ void load_runs(Vector<T, V> (&x)[K], const Source& source, Place start, const ShortRuns& runs,
                                          const DimsOf<Place>& dims, int64_t first, int lane, const Nothing<T>& nothing) {
  const int lanes = 1 << runs.log_lanes, steps = 1 << runs.log_steps, inner = lane & (lanes - 1), side = runs.side();
  const int length = static_cast<int>(runs.length);
  const int64_t run = first + (lane >> runs.log_lanes);
  const Place pitch = dims.rank == 1 ? dims.dims[0].in : Place{};
  Place places[K];  // of runs in several dims
  if (dims.rank > 1) {
#pragma unroll 1
    for (int i = 0; i < K >> runs.log_steps; ++i)
      places[i] = run + i * side < runs.count ? far_place(dims, run + i * side).in : Place{};
  }
  // The places of all vectors come before the loads, which are then in flight together.
  Place at[K];
  int left[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = k >> runs.log_steps;
    left[k] = run + i * side < runs.count ? length : 0;
    at[k] = start + (dims.rank > 1 ? places[i] : left[k] > 0 ? pitch * (run + i * side) : Place{});
  }
  typename Source::template Loaded<V> loaded[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int step = k & (steps - 1);
    if constexpr (kVectors) {
      const int e = (step * lanes + inner) * V;
      loaded[k] = source.template load_if<V>(e < left[k], source.along(at[k], e), nothing);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int e = (step * V + j) * lanes + inner;
        x[k].set(j, source.elements(source.template load_if<1>(e < left[k], source.along(at[k], e), nothing))[0]);
      }
    }
  }
  if constexpr (kVectors) {
#pragma unroll
    for (int k = 0; k < K; ++k) x[k] = source.elements(loaded[k]);
  }
}

constexpr int kRowLoads = kExactRowLoads;
template <class T>
constexpr int kRowVector = kGranule / sizeof(T);
template <class T>
constexpr int kRowTile = kWarp * kRowLoads * kRowVector<T>;  // elements

template <class T>
constexpr int kRowThreads = exact_threads(sizeof(T));
template <class T>
constexpr int kColumnThreads = exact_threads(sizeof(T));
template <class T>
constexpr int kRowResident = exact_resident(sizeof(T));
template <class T>
constexpr int kColumnResident = exact_resident(sizeof(T));

// --- long rows ------------------------------------------------------------------------------------------------------------

template <class Source>
struct ExactRows {
  Source input;
  ShortRuns runs;  // of an output
  bool aligned;    // all runs begin at addresses of whole vectors
  int8_t log_warps;
  int64_t tiles, tiles_of_run;  // per output; per run, or 0 if runs are short
  int64_t parts, part_tiles;
  ExactResult result;
  DimsOf<typename Source::Place> kept, outer;  // outer: the runs' places
};

// 1 << log_warps warps take a part of an output, tile by tile in turn.
template <class Source, class T = typename Source::Type>
__global__ void __launch_bounds__(kRowThreads<T>, kRowResident<T>) exact_rows(const __grid_constant__ ExactRows<Source> a) {
  using Place = typename Source::Place;
  using Range = typename ExactFormat<T>::Range;
  constexpr int kThreads = kRowThreads<T>, K = kRowLoads, V = kRowVector<T>, kWords = kExactWords<Range>;
  __shared__ int64_t memory[kRowDigits<Range> * kThreads], joined[kThreads / kWarp][kWords];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = 1 << a.log_warps, member = warp & (warps - 1);
  const int64_t output = (int64_t{blockIdx.x} * (kThreads / kWarp) + warp) >> a.log_warps, part = blockIdx.y;
  const Digits digits{memory + threadIdx.x, kThreads};
  const Nothing<T> nothing(a.input.signs.negate);
  WarpNumber<Range> number;
  uint32_t seen[1] = {}, other = 0;
  wait_for_previous_kernel();
  allow_next_kernel();
  if (output < a.result.outputs) {
    const Place row = place_of(a.kept, output).in;
    const int64_t end = min(a.tiles, (part + 1) * a.part_tiles);
    int64_t tile = part * a.part_tiles + member, run = 0, tile_in_run = tile;
    if (a.tiles_of_run > 0 && a.runs.count > 1) {
      run = tile / a.tiles_of_run;
      tile_in_run = tile - run * a.tiles_of_run;
    }
    Window<T> window;
    WindowSum<T> sum;
    bool used = false;  // the digits
    int left = kExactAdds / (K * V);
    while (true) {
      const bool more = tile < end;
      Vector<T, V> x[K];
      bool fits = true;
      Window<T> next = window;
      if (more) {
        Place start = row;
        ShortRuns runs = a.runs;
        int64_t first = tile * ((K >> runs.log_steps) * runs.side());
        bool whole = false;
        if (a.tiles_of_run > 0) {
          while (tile_in_run >= a.tiles_of_run && a.runs.count > 1) {
            tile_in_run -= a.tiles_of_run;
            ++run;
          }
          start = row + place_of(a.outer, run).in;
          const int head = a.aligned ? 0 : a.input.head(start);
          const int64_t begin = max(tile_in_run * kRowTile<T> - head, int64_t{0});
          const int64_t end = min((tile_in_run + 1) * kRowTile<T> - head, a.runs.length);
          start = a.input.along(start, begin);
          whole = end - begin == kRowTile<T> && (a.aligned || Source::kHasHeads);
          runs = {1, end - begin, 5, 3, false};  // otherwise it is a short run
          first = 0;
          tile_in_run += warps;
        }
        if (whole) {
          typename Source::template Loaded<V> loaded[K];
#pragma unroll
          for (int k = 0; k < K; ++k) loaded[k] = a.input.template load<V>(a.input.along(start, (k * kWarp + lane) * V));
#pragma unroll
          for (int k = 0; k < K; ++k) x[k] = a.input.elements(loaded[k]);
        } else {
          load_runs<false>(x, a.input, start, runs, a.outer, first, lane, nothing);
        }
        Exponents<T> exponents;
#pragma unroll
        for (int k = 0; k < K; ++k) {
          exponents.add(x[k]);
          other |= nothing.differs(x[k]);
        }
        const int highest = exponents.highest(), lowest = exponents.lowest();
        fits = __all_sync(~0u, window.has(highest, lowest));
        if (!fits) fits = next.place(warp_max(highest), warp_min(lowest), kLogExactAdds, a.input.signs.negate);
      }
      if (!more || left == 0 || next.base != window.base) {  // flushes
        if (window.top >= 0) {
          window.split(sum, kLogExactAdds, [&](int64_t n, int bit) { number.add_lanes(n, bit, lane); });
          sum = {};
        }
        if (used)
#pragma unroll 1
          for (int d = 0; d < kRowDigits<Range>; ++d) number.add_lanes(digits[d], 32 * d, lane);
        used = false;
        left = kExactAdds / (K * V);
      }
      if (!more) break;
      window = next;
      if (fits) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
          for (int j = 0; j < V; ++j) window.add(sum, x[k][j], kLogExactAdds);
        }
      } else {
        if (!used) digits.clear(kRowDigits<Range>);
        used = true;
        add_elements(x, [&](int) { return digits; }, seen, a.input.signs);
      }
      --left;
      tile += warps;
    }
  }
  // Joins the warps of the part.
  const uint32_t all_seen = warp_or(seen[0] | (other ? exact::kOther : exact::kMinusZero));
#pragma unroll
  for (int i = 0; i < number.kEach; ++i)
    if (lane + i * kWarp < Range::kDigits) joined[warp][lane + i * kWarp] = number.digits[i];
  if (lane == 0) joined[warp][Range::kDigits] = all_seen;
  __syncthreads();
  if (member > 0 || output >= a.result.outputs) return;
  for (int i = 0; i < number.kEach; ++i) {
    const int word = lane + i * kWarp;
    number.digits[i] = 0;
#pragma unroll 1
    for (int w = 0; w < warps && word < Range::kDigits; ++w) number.digits[i] += joined[warp + w][word];
    if (a.result.partials && word < Range::kDigits)
      a.result.partials[(part * kWords + word) * a.result.outputs + output] = number.digits[i];
  }
  uint32_t row_seen = 0;
#pragma unroll 1
  for (int w = 0; w < warps; ++w) row_seen |= static_cast<uint32_t>(joined[warp + w][Range::kDigits]);
  if (!a.result.partials) number.store(a.result, place_of(a.kept, output).out, row_seen, lane);
  else if (lane == 0) a.result.partials[(part * kWords + Range::kDigits) * a.result.outputs + output] = row_seen;
}

// --- short rows -----------------------------------------------------------------------------------------------------------

template <class Source>
struct ExactShortRows {
  Source input;
  ShortRuns runs;   // one per output
  int8_t log_adds;  // a row has at most 1 << log_adds elements
  ExactResult result;
  DimsOf<typename Source::Place> kept;
};

// Stores n * 2^bit, of the bits of a fixed-point number.
template <class Range, class Integer>
__device__ __forceinline__ void store_integer(const ExactResult& result, int64_t index, Integer n, int bit, uint32_t seen) {
  if (result.states) {
    int64_t* const to = static_cast<int64_t*>(result.output) + index * exact::kStateSize<Range>;
    constexpr int kBits = 8 * sizeof(Integer);
#pragma unroll 1
    for (int i = 0; i < Range::kDigits; ++i) {
      const int from = 32 * i - bit;
      const Integer shifted = from >= kBits ? (n < 0 ? -1 : 0)
                              : from >= 0   ? n >> from
                              : from > -32  ? n * (Integer{1} << -from)
                                            : 0;
      const int64_t digit = static_cast<int64_t>(shifted);
      to[i] = exact::shown_digit(i + 1 < Range::kDigits ? digit & 0xffffffff : digit, seen);
    }
    exact::write_seen<Range>(to, seen);
    return;
  }
  exact::Magnitude x{0, 0, bit + Range::kLowest, false, n < 0};
  if constexpr (sizeof(Integer) == 8) {
    x.low = n < 0 ? 0 - static_cast<uint64_t>(n) : static_cast<uint64_t>(n);
  } else {
    const auto magnitude = n < 0 ? 0 - static_cast<unsigned __int128>(n) : static_cast<unsigned __int128>(n);
    x.high = static_cast<uint64_t>(magnitude >> 64);
    x.low = static_cast<uint64_t>(magnitude);
  }
  store_magnitude(result, index, x, 0, seen);
}

// Stores a sum in a window.
template <class T>
__device__ __forceinline__ void store_sum(const ExactResult& result, int64_t index, const WindowSum<T>& sum,
                                          const Window<T>& window, int log_adds, uint32_t seen) {
  using Range = typename ExactFormat<T>::Range;
  if constexpr (sizeof(T) == 8) {
    const auto high = static_cast<__int128>(sum.high) * (int64_t{1} << ExactFormat<T>::low_bits(log_adds));
    store_integer<Range>(result, index, high + sum.low, window.bit(), seen);
  } else {
    store_integer<Range>(result, index, sum.low, window.bit(), seen);
  }
}

// A warp takes a tile of whole rows, in one window. If there is none, each row goes through the digits of its threads.
template <class Source, class T = typename Source::Type>
__global__ void __launch_bounds__(kRowThreads<T>, kRowResident<T>)
    exact_short_rows(const __grid_constant__ ExactShortRows<Source> a) {
  using Range = typename ExactFormat<T>::Range;
  constexpr int kThreads = kRowThreads<T>, K = kRowLoads, V = kRowVector<T>, kWords = kRowDigits<Range> * kWarp;
  static_assert(kWords * 8 >= K * kWarp * static_cast<int>(sizeof(WindowSum<T>)));
  constexpr int kPitch = kRowDigits<Range> + 1;
  __shared__ int64_t memory[kThreads / kWarp][kWords];
  __shared__ int64_t row_digits[kThreads / kWarp][sizeof(T) < 8 ? kWarp * kPitch : 1];  // of the rows that are rounded next
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, log_lanes = a.runs.log_lanes, log_steps = a.runs.log_steps;
  const int lanes = 1 << log_lanes, side = a.runs.side(), slots = K >> log_steps;
  const int64_t first = (int64_t{blockIdx.x} * (kThreads / kWarp) + warp) * (slots * side);
  const Nothing<T> nothing(a.input.signs.negate);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (first >= a.runs.count) return;
  const int rows = static_cast<int>(min(a.runs.count - first, static_cast<int64_t>(slots * side)));
  Vector<T, V> x[K];
  if (a.runs.vectors) load_runs<true>(x, a.input, {}, a.runs, a.kept, first, lane, nothing);
  else load_runs<false>(x, a.input, {}, a.runs, a.kept, first, lane, nothing);
  Exponents<T> exponents;
#pragma unroll
  for (int k = 0; k < K; ++k) exponents.add(x[k]);
  Window<T> window;
  if (window.place(warp_max(exponents.highest()), warp_min(exponents.lowest()), a.log_adds, a.input.signs.negate)) {
    WindowSum<T> sums[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int j = 0; j < V; ++j) window.add(sums[k], x[k][j], a.log_adds);
    }
#pragma unroll
    for (int level = 0; level < 3; ++level) {
      if (log_steps > level) {
#pragma unroll
        for (int i = 0; i < K >> (level + 1); ++i) {
          sums[i] = sums[2 * i];
          sums[i] += sums[2 * i + 1];
        }
      }
    }
    constexpr int kShared = 8;  // sums of a row that are joined through shared memory
    for (int step = lanes / 2; step >= kShared; step /= 2) add_other_lane(sums[0], step);
    WindowSum<T>* const slot = reinterpret_cast<WindowSum<T>*>(memory[warp]);
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (k < slots) slot[k * kWarp + lane] = sums[k];
    __syncwarp();
    const int count = min(lanes, kShared);
    for (int i = lane; i < rows; i += kWarp) {
      WindowSum<T> sum;
      for (int s = 0; s < count; ++s) sum += slot[i * lanes + ((s + i / 2) & (count - 1))];  // turned: threads read other banks
      const auto place = place_of(a.kept, first + i);
      uint32_t seen = exact::kOther;
      if (sum.zero()) {  // -0 if all elements are
        seen = exact::kMinusZero;
        for (int e = 0; e < static_cast<int>(a.runs.length) && seen == exact::kMinusZero; ++e)
          if (nothing.differs(a.input.elements(a.input.template load<1>(a.input.along(place.in, e))))) seen = exact::kOther;
      }
      store_sum(a.result, place.out, sum, window, a.log_adds, seen);
    }
    return;
  }
  // Without a window each thread has digits of its own, for the rows that lie side by side in the warp and then for the next.
  const Digits digits{memory[warp] + lane, kWarp};
  constexpr int kDigits = kRowDigits<Range>;
  const int batch = min(slots, lanes);  // slots whose rows are rounded at once, a lane each
  uint32_t row_seen = 0;                // of the lane's row
  for (int s = 0; s < slots; ++s) {
    digits.clear(kDigits);
    uint32_t seen = 0, other = 0;
#pragma unroll 1
    for (int k = 0; k < 1 << log_steps; ++k) {
      other |= nothing.differs(x[0]);
#pragma unroll
      for (int j = 0; j < V; ++j) add_element(digits, seen, value(x[0][j]), a.input.signs);
#pragma unroll
      for (int i = 0; i + 1 < K; ++i) x[i] = x[i + 1];
    }
    seen |= other ? exact::kOther : exact::kMinusZero;
#pragma unroll 1
    for (int step = lanes / 2; step > 0; step /= 2) seen |= __shfl_xor_sync(~0u, seen, step);
    __syncwarp();
    // A lane adds digit d of the threads of row q, from another thread on than its neighbours: they read other banks.
    const auto gather = [&](int q, int d, int64_t& low, int64_t& high) {
      const int64_t* const group = memory[warp] + d * kWarp + q * lanes;
#pragma unroll 1
      for (int t = 0; t < lanes; ++t) {
        const int64_t digit = group[(t + d) & (lanes - 1)];
        low += digit & 0xffffffff;
        high += digit >> 32;
      }
    };
    if constexpr (sizeof(T) < 8) {
      const int ready = s & (batch - 1);  // slots before this one in the batch
#pragma unroll 1
      for (int pair = lane; pair - lane < side * kDigits; pair += kWarp) {
        const int q = pair / kDigits, d = lane % kDigits;
        int64_t low = 0, high = 0;
        if (q < side) gather(q, d, low, high);
        const int64_t from = __shfl_up_sync(~0u, high, 1);
        int64_t* const row = row_digits[warp] + (ready * side + q) * kPitch;
        if (q < side) row[d] = low + (d > 0 ? from : 0);
        if (q < side && d + 1 == kDigits) row[kDigits] = high;
      }
      const int q = lane - ready * side;
      const uint32_t of_row = __shfl_sync(~0u, seen, q * lanes & (kWarp - 1));
      if (q >= 0 && q < side) row_seen = of_row;
      __syncwarp();
      const int row = (s - ready) * side + lane;
      if (ready + 1 == batch && lane < batch * side && row < rows) {
        exact::FixedPoint<Range> number;
        number.clear();
#pragma unroll 1
        for (int d = 0; d <= kDigits; ++d) number.digits[d] = row_digits[warp][lane * kPitch + d];
        number.seen = row_seen;
        store_exact(number, a.result, place_of(a.kept, first + row).out);
      }
    } else {  // a warp rounds each row's number, which is long
#pragma unroll 1
      for (int q = 0; q < side && s * side + q < rows; ++q) {
        WarpNumber<Range> number;
#pragma unroll
        for (int i = 0; i < number.kEach; ++i) {
          const int d = lane + i * kWarp;
          int64_t unused = 0;
          if (d < kDigits) gather(q, d, number.digits[i], unused);
          if (d > 0 && d <= kDigits) gather(q, d - 1, unused, number.digits[i]);
        }
        number.store(a.result, place_of(a.kept, first + s * side + q).out, __shfl_sync(~0u, seen, q * lanes), lane);
      }
    }
    __syncwarp();
  }
}

// --- columns --------------------------------------------------------------------------------------------------------------

template <class Source>
struct ExactColumns {
  Source input;
  int64_t columns, rows, parts, part_rows;  // columns: of a batch
  uint32_t column_tiles;
  int8_t log_width;  // threads side by side
  bool vectors;      // all rows lie in whole aligned vectors; otherwise a thread's columns lie 1 << log_width apart
  ExactResult result;
  int64_t out_stride;                             // of columns
  DimsOf<typename Source::Place> batch, reduced;  // the kept dims but the last; the rows
};

template <class T>
constexpr int kColumnVector = exact_column_vector(sizeof(T));
template <class T>
constexpr int kColumnLoads = exact_column_loads(sizeof(T));

// A thread takes a few neighbouring columns, with one window. The threads of a block that lie one below the other take rows in
// turn. At the end each adds its integers to its digits, and the block joins them column by column.
template <class Source, class T = typename Source::Type>
__global__ void __launch_bounds__(kColumnThreads<T>, kColumnResident<T>)
    exact_columns(const __grid_constant__ ExactColumns<Source> a) {
  using Place = typename Source::Place;
  using Range = typename ExactFormat<T>::Range;
  constexpr int kThreads = kColumnThreads<T>, V = kColumnVector<T>, K = kColumnLoads<T>, kDigits = Range::kDigits;
  __shared__ int64_t memory[V * kDigits * kThreads];
  __shared__ uint32_t seen_by[V * kThreads];
  const int width = 1 << a.log_width, x = threadIdx.x & (width - 1), y = threadIdx.x >> a.log_width;
  const int height = kThreads >> a.log_width;
  const int64_t part = blockIdx.x / a.column_tiles, batch = int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  const int64_t first_column = int64_t{blockIdx.x - static_cast<uint32_t>(part) * a.column_tiles} * (width * V);
  const int64_t left = a.columns - first_column;
  if (batch * a.columns >= a.result.outputs) return;
  const auto place = place_of(a.batch, batch);
  const auto column_of = [&](int x, int c) { return a.vectors ? x * V + c : x + c * width; };
  // A thread beyond the last column reads the first one, and its sums are not used.
  int thread_columns[V];
#pragma unroll
  for (int c = 0; c < V; ++c) thread_columns[c] = column_of(x, c) < left ? column_of(x, c) : 0;
  const Place start = a.input.along(place.in, first_column);
  const Nothing<T> nothing(a.input.signs.negate);
  const auto digits_of = [&](int c) { return Digits{memory + c * kDigits * kThreads + threadIdx.x, kThreads}; };
  Window<T> window;
  WindowSum<T> sums[V];
  constexpr int kOtherWords = ceil_div(V * sizeof(T), 4) > V ? V : ceil_div(V * sizeof(T), 4);
  uint32_t seen[V] = {}, other[kOtherWords] = {};  // other: by words
  bool used = false, slow = false;                 // the digits are used; for elements
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t end = min(a.rows, (part + 1) * a.part_rows);
  int tiles = kExactAdds / K;
  for (int64_t row = part * a.part_rows + y;; row += K * height) {
    const int64_t rows = end - row;
    Vector<T, V> v[K];
    bool fits = true;
    Window<T> next = window;
    if (rows > 0) {
      Place at[K];  // beyond the last row nothing is loaded
      if (a.reduced.rank == 1) {
        const Place pitch = a.reduced.dims[0].in * int64_t{height};
        at[0] = start + a.reduced.dims[0].in * row;
#pragma unroll
        for (int k = 1; k < K; ++k) at[k] = at[k - 1] + pitch;
      } else {
#pragma unroll
        for (int k = 0; k < K; ++k) at[k] = rows > k * height ? start + place_of(a.reduced, row + k * height).in : start;
      }
      if (a.vectors && rows > (K - 1) * height) {
        typename Source::template Loaded<V> loaded[K];
#pragma unroll
        for (int k = 0; k < K; ++k) loaded[k] = a.input.template load<V>(a.input.along(at[k], thread_columns[0]));
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] = a.input.elements(loaded[k]);
      } else {
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
          for (int c = 0; c < V; ++c) {
            const Place place = a.input.along(at[k], thread_columns[c]);
            v[k].set(c, a.input.elements(a.input.template load_if<1>(rows > k * height, place, nothing))[0]);
          }
        }
      }
      Exponents<T> exponents;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        exponents.add(v[k]);
        if constexpr (sizeof(T) == 8) {
          other[0] |= nothing.differs(v[k]);
        } else {
#pragma unroll
          for (int w = 0; w < kOtherWords; ++w) other[w] |= v[k].word(w) ^ nothing.words[0];
        }
      }
      const int highest = exponents.highest(), lowest = exponents.lowest();
      fits = window.has(highest, lowest) || next.place(highest, lowest, kLogExactAdds, a.input.signs.negate);
    }
    if (rows <= 0 || tiles == 0 || next.base != window.base || (!fits && !used)) {  // flushes
      if (!used) {
#pragma unroll 1
        for (int c = 0; c < V; ++c) digits_of(c).clear(kDigits);
      }
      used = true;
      if (window.top >= 0) {
#pragma unroll
        for (int c = 0; c < V; ++c) {
          window.split(sums[c], kLogExactAdds, [&](int64_t n, int bit) { digits_of(c).add(n, bit); });
          sums[c] = {};
        }
      }
      if (slow) {
#pragma unroll 1
        for (int c = 0; c < V; ++c) digits_of(c).carry(kDigits);
      }
      slow = false;
      tiles = kExactAdds / K;
    }
    if (rows <= 0) break;
    window = next;
    if (fits) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
#pragma unroll
        for (int c = 0; c < V; ++c) window.add(sums[c], v[k][c], kLogExactAdds);
      }
    } else {
      slow = true;
      add_elements(v, digits_of, seen, a.input.signs);
    }
    --tiles;
  }
#pragma unroll
  for (int c = 0; c < V; ++c) {
    const uint32_t others = sizeof(T) == 2 ? other[c / 2] >> c % 2 * 16 & 0xffff : other[c];
    seen_by[c * kThreads + threadIdx.x] = seen[c] | (others ? exact::kOther : exact::kMinusZero);
  }
  __syncthreads();
  // Sum i: of a digit, or of what was seen, of one of the columns. It replaces the one of the first thread.
  for (int i = threadIdx.x; i < V * (kDigits + 1) * width; i += kThreads) {
    const int x = i & (width - 1), word = i >> a.log_width, c = word / (kDigits + 1), d = word % (kDigits + 1);
    const int64_t output = batch * a.columns + first_column + column_of(x, c);
    int64_t sum = 0;
    if (d < kDigits) {
      int64_t* const digits = memory + (c * kDigits + d) * kThreads + x;
#pragma unroll 2
      for (int t = 0; t < height; ++t) sum += digits[t * width];
      digits[0] = sum;
    } else {
      uint32_t* const seen = seen_by + c * kThreads + x;
#pragma unroll 1
      for (int t = 0; t < height; ++t) sum |= seen[t * width];
      *seen = static_cast<uint32_t>(sum);
    }
    if (a.result.partials && column_of(x, c) < left)
      a.result.partials[(part * kExactWords<Range> + d) * a.result.outputs + output] = sum;
  }
  if (a.result.partials) return;
  __syncthreads();
  const auto out = [&](int x, int c) { return place.out + (first_column + column_of(x, c)) * a.out_stride; };
  if constexpr (sizeof(T) == 8) {  // a warp for each number, which is long
    const int lane = threadIdx.x % kWarp;
    for (int i = threadIdx.x / kWarp; i < width && i < left; i += kThreads / kWarp) {
      WarpNumber<Range> number;
#pragma unroll
      for (int w = 0; w < number.kEach; ++w)
        if (lane + w * kWarp < kDigits) number.digits[w] = memory[(lane + w * kWarp) * kThreads + i];
      number.store(a.result, out(i, 0), seen_by[i], lane);
    }
  } else {
    for (int i = threadIdx.x; i < V * width; i += kThreads) {
      const int x = i & (width - 1), c = i >> a.log_width;
      if (column_of(x, c) >= left) continue;
      exact::FixedPoint<Range> number;
#pragma unroll 1
      for (int d = 0; d < kDigits; ++d) number.digits[d] = memory[(c * kDigits + d) * kThreads + x];
      number.seen = seen_by[c * kThreads + x];
      store_exact(number, a.result, out(x, c));
    }
  }
}

// --- everything else ------------------------------------------------------------------------------------------------------

struct ExactAny {
  struct Input {
    const void* data;
    DType dtype;
    bool negate;
  };
  Input inputs[2];
  bool products, nan_is_zero;
  int8_t log_lanes;
  int64_t length, parts, part_length;
  ExactResult result;
  Nest<kMaxRank, Both> kept, reduced;
};

// Element `index` of any dtype, or its negative.
inline __device__ __noinline__ exact::Element element_any(const ExactAny::Input& input, int64_t index) {
  double number = 0;
  int64_t whole = 0;
  bool integer = false;
  const auto take = [&](auto x) {
    if constexpr (!IsComplex<decltype(x)>::value) {
      const auto v = value(x);
      integer = std::is_integral_v<decltype(value(x))>;
      if constexpr (std::is_integral_v<decltype(value(x))>) whole = static_cast<int64_t>(v);
      else number = v;
    }
  };
  switch (input.dtype) {
#define GPUREDUCE_CASE(name, type, ...) \
  case DType::name: take(static_cast<const type*>(input.data)[index]); break;
    GPUREDUCE_DTYPES(GPUREDUCE_CASE)
#undef GPUREDUCE_CASE
  }
  if (!integer) return exact::element_of(number, input.negate);
  return input.dtype == DType::UInt64 ? exact::element_of(static_cast<uint64_t>(whole)) : exact::element_of(whole);
}

// 1 << log_lanes threads take a part of an output, element by element in turn, each with a number of its own.
template <class Range>
__global__ void __launch_bounds__(kExactAnyThreads) exact_any(const __grid_constant__ ExactAny a) {
  const int lanes = 1 << a.log_lanes, lane = threadIdx.x & (lanes - 1);
  const int64_t unit = (int64_t{blockIdx.x} * kExactAnyThreads + threadIdx.x) >> a.log_lanes;
  // Neighbouring units are neighbouring outputs.
  const int64_t part = unit / a.result.outputs, output = unit - part * a.result.outputs;
  wait_for_previous_kernel();
  allow_next_kernel();
  const bool valid = part < a.parts;
  const Spot<Both> place = a.kept.at(valid ? output : 0);
  exact::FixedPoint<Range> sum;
  sum.clear();
  if (valid) {
    const int64_t end = min(a.length, (part + 1) * a.part_length);
    uint32_t adds = 0;
    for (int64_t i = part * a.part_length + lane; i < end; i += lanes) {
      const Both at = place.in + a.reduced.at(i).in;
      exact::Element x = element_any(a.inputs[0], at.first);
      if (a.nan_is_zero && (x.seen & exact::kNaN) == exact::kNaN) x.seen = exact::kOther;
      if (a.products) exact::add_product(sum, x, element_any(a.inputs[1], at.second));
      else exact::add(sum, x);
      if (++adds >> 28) {
        sum.carry();
        adds = 0;
      }
    }
    sum.carry();
  }
  for (int step = lanes / 2; step > 0; step /= 2) {
#pragma unroll 1
    for (int i = 0; i < Range::kDigits; ++i) sum.digits[i] += __shfl_xor_sync(~0u, sum.digits[i], step);
    sum.seen |= __shfl_xor_sync(~0u, sum.seen, step);
  }
  if (!valid || lane > 0) return;
  if (!a.result.partials) return store_exact(sum, a.result, place.out);
  int64_t* const to = a.result.partials + part * kExactWords<Range> * a.result.outputs + output;
#pragma unroll 1
  for (int i = 0; i < Range::kDigits; ++i) to[i * a.result.outputs] = sum.digits[i];
  to[Range::kDigits * a.result.outputs] = sum.seen;
}

// --- parts ----------------------------------------------------------------------------------------------------------------

struct ExactJoin {
  const int64_t* partials;
  int64_t parts;
  int32_t log_outputs;  // of a block
  ExactResult result;
  Dims kept;
};
template <class Range>
constexpr int kLogJoinSlots = exact_log_join_slots(kExactWords<Range>);
template <class Range>
constexpr int kJoinSlots = 1 << kLogJoinSlots<Range>;

// A block has kJoinSlots threads for each word of a number; 1 << log_outputs of them take an output each, and the others more
// parts of these outputs.
template <class Range>
__global__ void __launch_bounds__(kJoinSlots<Range>* kExactWords<Range>) exact_join(const __grid_constant__ ExactJoin a) {
  constexpr int kSlots = kJoinSlots<Range>, kWords = kExactWords<Range>, kInFlight = 32;
  __shared__ int64_t memory[kWords][kSlots + 1];
  const int word = threadIdx.x / kSlots, slot = threadIdx.x % kSlots, outputs = 1 << a.log_outputs;
  const int64_t first = int64_t{blockIdx.x} << a.log_outputs, output = first + (slot & (outputs - 1));
  const int member = slot >> a.log_outputs, members = kSlots >> a.log_outputs;
  const bool adds = word < Range::kDigits, valid = output < a.result.outputs;
  const int64_t* const partials = a.partials + word * a.result.outputs + (valid ? output : 0);
  const int64_t pitch = a.result.outputs * kWords;
  wait_for_previous_kernel();
  allow_next_kernel();
  int64_t sum = 0;
  for (int64_t part = member; valid && part < a.parts; part += kInFlight * members) {
    int64_t more[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) more[i] = part + i * members < a.parts ? partials[(part + i * members) * pitch] : 0;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum = adds ? sum + more[i] : sum | more[i];
  }
  memory[word][slot] = sum;
  __syncthreads();
  if (member == 0) {
#pragma unroll 2
    for (int m = 1; m < members; ++m) {
      const int64_t more = memory[word][slot + m * outputs];
      sum = adds ? sum + more : sum | more;
    }
    memory[word][slot] = sum;
  }
  __syncthreads();
  constexpr int kWarps = kSlots * kWords / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (warp >= kWarps) return;
  for (int i = warp; i < outputs && first + i < a.result.outputs; i += kWarps) {  // a warp finishes an output
    WarpNumber<Range> number;
#pragma unroll
    for (int w = 0; w < number.kEach; ++w)
      if (lane + w * kWarp < Range::kDigits) number.digits[w] = memory[lane + w * kWarp][i];
    const auto seen = static_cast<uint32_t>(memory[Range::kDigits][i]);
    number.store(a.result, place_of(a.kept, first + i).out, seen, lane);
  }
}

// Rounds states that lie one after the other, as the results do: one state per thread.
struct ExactRound {
  const int64_t* states;
  ExactResult result;
};
template <class Range>
__global__ void __launch_bounds__(kExactAnyThreads) exact_round(const __grid_constant__ ExactRound a) {
  const int64_t i = int64_t{blockIdx.x} * kExactAnyThreads + threadIdx.x;
  wait_for_previous_kernel();
  allow_next_kernel();
  if (i >= a.result.outputs) return;
  exact::FixedPoint<Range> sum;
  sum.clear();
  exact::add_state(sum, a.states + i * exact::kStateSize<Range>);
  store_exact(sum, a.result, i);
}

}  // namespace gpureduce::cuda
