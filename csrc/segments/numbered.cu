// Rows that are chosen by number. For example rows of 3 float32 with the numbers 2, 0, 2: a row has 3 words of 4 bytes, so unit
// 4 of the 9 is word 1 of entry 1, and is copied from word 1 of row 0.
//
// Numbers of segments are found in offsets. For example with offsets 1, 3, 3, 6, entry 4 has the number 2: the first offset
// above 4 is the one at place 3.
#include "numbered.h"

#undef NDEBUG  // numbers are checked in every build
#include <algorithm>
#include <cassert>

#include "../core/cuda/any.cuh"
#include "../core/cuda/load/vectors.cuh"
#include "../core/problem/index.h"
#include "../core/problem/nest.h"

namespace gpureduce::cuda {

namespace {

constexpr int kThreads = kNumberedThreads, kAtOnce = kNumberedAtOnce, kUnits = kNumberedUnits;

// The place of a unit in sizes (outer, entries, words).
struct Places {
  Nest<3> nest;
  struct Place { uint32_t outer, entry, word; };

  Places(int64_t outer, int64_t entries, int64_t words) {
    for (int64_t size : {outer, entries, words}) nest.add(size, 0, 0);
  }
  __device__ __forceinline__ Place at(uint32_t unit) const {
    const uint32_t row = nest.dims[2].divide(unit), outer = nest.dims[1].divide(row);
    return {outer, row - outer * static_cast<uint32_t>(nest.dims[1].size),
            unit - row * static_cast<uint32_t>(nest.dims[2].size)};
  }
};

uint32_t blocks_of(int64_t units) { return static_cast<uint32_t>((units + kUnits - 1) / kUnits); }

// --- copies ------------------------------------------------------------------------------------------------------------------

template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy(const __grid_constant__ CopiedRows a, const __grid_constant__ Places places, uint32_t units) {
  const uint32_t first = blockIdx.x * kUnits + threadIdx.x;
  Places::Place place[kAtOnce];
  int64_t number[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    const uint32_t unit = first + k * kThreads;
    place[k] = places.at(min(unit, units - 1));
    number[k] = integer_at(a.numbers, a.wide, place[k].entry);
  }
  Word word[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    assert(number[k] < a.rows && (a.zeros || number[k] >= 0) && "an index is not in [0, the number of rows)");
    const char* const from = a.from + place[k].outer * a.from_outer + number[k] * a.from_stride;
    word[k] = number[k] < 0 ? Word{} : reinterpret_cast<const Word*>(from)[place[k].word];
  }
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    char* const to = a.to + place[k].outer * a.to_outer + place[k].entry * a.to_stride;
    if (first + k * kThreads < units) reinterpret_cast<Word*>(to)[place[k].word] = word[k];
  }
}

template <class Word>
cudaError_t copy_words(const CopiedRows& call, cudaStream_t stream) {
  const int64_t words = call.row_bytes / sizeof(Word), each = call.outer * words;
  for (int64_t first = 0; first < call.entries;) {
    CopiedRows part = call;
    part.entries = std::min(call.entries - first, kMostNumbered / each);
    part.numbers = static_cast<const char*>(call.numbers) + first * (call.wide ? 8 : 4);
    part.to = call.to + first * call.to_stride;
    const int64_t units = part.entries * each;
    copy<Word>
        <<<blocks_of(units), kThreads, 0, stream>>>(part, {call.outer, part.entries, words}, static_cast<uint32_t>(units));
    if (const cudaError_t error = cudaGetLastError()) return error;
    first += part.entries;
  }
  return cudaSuccess;
}

// --- numbers of entries ------------------------------------------------------------------------------------------------------

struct Offsets {
  const void* at;
  bool wide;
  int64_t count;  // of segments

  __device__ __forceinline__ int64_t operator[](int64_t i) const { return integer_at(at, wide, i); }

  // The first place from `low` to `high` whose offset is greater than `entry`, or `high`.
  __device__ __forceinline__ int64_t above(int64_t entry, int64_t low, int64_t high) const {
#pragma unroll 1
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if ((*this)[middle] > entry) high = middle;
      else low = middle + 1;
    }
    return low;
  }
  // The same from 0 to count + 1, by a warp, which looks at 32 places at once.
  __device__ __forceinline__ int64_t above_by_warp(int64_t entry) const {
    int64_t low = 0, high = count + 1;
#pragma unroll 1
    while (low < high) {
      const int64_t step = (high - low + kWarp - 1) / kWarp, probe = low + threadIdx.x % kWarp * step + step - 1;
      low += __popc(__ballot_sync(~0u, probe < high && (*this)[min(probe, count)] <= entry)) * step;
      high = min(high, low + step - 1);
    }
    return low;
  }
  // A block's threads learn between which places their entries, from `first` to `last`, find theirs.
  __device__ __forceinline__ void find_bounds(int64_t first, int64_t last, int64_t (&bounds)[2]) const {
    const int warp = threadIdx.x / kWarp;
    if (warp < 2) {
      const int64_t found = above_by_warp(warp == 0 ? first : last);
      if (threadIdx.x % kWarp == 0) bounds[warp] = found;
    }
    __syncthreads();
  }
  // The numbers of V neighbouring entries.
  template <int V>
  __device__ __forceinline__ void number(int64_t entry, const int64_t (&bounds)[2], int32_t (&numbers)[V]) const {
    int64_t place = bounds[0], next = -1;  // next: the offset at the place
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (next <= entry + j) {
        place = above(entry + j, place, bounds[1]);
        next = place <= count ? (*this)[place] : INT64_MAX;
      }
      numbers[j] = place <= count ? static_cast<int32_t>(place) - 1 : -1;
    }
  }
};

__global__ void __launch_bounds__(kThreads) number(Offsets offsets, int64_t entries, int32_t* numbers) {
  __shared__ int64_t bounds[2];
  const int64_t first = int64_t{blockIdx.x} * kUnits, last = min(first + kUnits, entries) - 1;
  offsets.find_bounds(first, last, bounds);
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    const int64_t entry = first + k * kThreads + threadIdx.x;
    if (entry > last) return;
    int32_t found[1];
    offsets.number(entry, bounds, found);
    numbers[entry] = found[0];
  }
}

// --- formulas ----------------------------------------------------------------------------------------------------------------

struct ApplyArgs {
  Formula formula;
  const void *x, *g;
  void* y;
  const void* r;
  const int32_t* numbers;  // of entries, or null: the kernel finds them by the offsets
  Offsets offsets;
  uint32_t count, units, inner;  // inner: elements of a row
};

// A run of V neighbours of a table, or one number of V rows. Nobody writes tables while the kernel runs, and __ldg says so: a
// unit's loads need not wait for the store of the one before.
template <int V, int kRows>
__device__ __forceinline__ Numbers<float, V> of_table(const void* memory, const uint32_t (&at)[kRows]) {
  const float* const table = static_cast<const float*>(memory);
  Numbers<float, V> found;
  if constexpr (kRows == V) {
#pragma unroll
    for (int j = 0; j < V; ++j) found.of[j] = __ldg(table + at[j]);
  } else {
#pragma unroll
    for (int j = 0; j < V; j += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(table + at[0] + j));
      found.of[j] = four.x;
      found.of[j + 1] = four.y;
      found.of[j + 2] = four.z;
      found.of[j + 3] = four.w;
    }
  }
  return found;
}

constexpr int kApplyBlocks = 4;  // per multiprocessor

// A unit is V neighbours. kOneColumn: each is a row of its own, otherwise they are of one row.
template <Formula formula, class T, class R, int V, bool kOneColumn>
__device__ __forceinline__ void apply_units(const ApplyArgs& a, const Places& places) {
  constexpr bool kElementwise = formula == Formula::softmax_backward;   // g lies like x
  constexpr int kCount = applied_units(V), kRows = kOneColumn ? V : 1;  // kRows: of the tables
  const uint32_t first = blockIdx.x * (kThreads * kCount) + threadIdx.x;
  Places::Place place[kCount];
  int32_t number[kCount][kRows];
  Vector<T, V> x[kCount], grad[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const uint32_t unit = min(first + k * kThreads, a.units - 1);
    place[k] = places.at(unit);
    if constexpr (!kOneColumn) number[k][0] = a.numbers[place[k].entry];
    x[k] = static_cast<const Vector<T, V>*>(a.x)[unit];
    if constexpr (kElementwise) grad[k] = static_cast<const Vector<T, V>*>(a.g)[unit];
  }
  if constexpr (kOneColumn) {
    __shared__ int64_t bounds[2];
    const uint32_t begin = blockIdx.x * (kThreads * kCount);
    const Places::Place low = places.at(begin), high = places.at(min(begin + kThreads * kCount, a.units) - 1);
    const bool together = low.outer == high.outer;  // otherwise a block may have any entries
    a.offsets.find_bounds(together ? int64_t{low.word} * V : -1, together ? int64_t{high.word} * V + V - 1 : INT64_MAX, bounds);
#pragma unroll
    for (int k = 0; k < kCount; ++k) a.offsets.number(int64_t{place[k].word} * V, bounds, number[k]);
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    uint32_t at[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const uint32_t in_tables = place[k].outer * a.count + max(number[k][j], 0);
      at[j] = kOneColumn ? in_tables : in_tables * a.inner + place[k].word * V;
    }
    const auto r = of_table<V>(a.r, at);
    Numbers<float, V> g;
    if constexpr (kElementwise) {
#pragma unroll
      for (int j = 0; j < V; ++j) g.of[j] = value(grad[k][j]);
    } else {
      g = of_table<V>(a.g, at);
    }
    R y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float found = applied<formula>(value(x[k][j]), g.of[j], r.of[j], 1.0f, 1.0f);
      y[j] = round_to<R>(number[k][kOneColumn ? j : 0] >= 0 ? found : 0.0f);
    }
    const uint32_t unit = first + k * kThreads;
    if (unit < a.units) store_granules([&](int i) { return static_cast<R*>(a.y) + int64_t{unit} * V + i; }, y);
  }
}

template <class T, class R, int V, bool kOneColumn>
__global__ void __launch_bounds__(kThreads, kApplyBlocks)
    numbered(const __grid_constant__ ApplyArgs a, const __grid_constant__ Places places) {
  if (a.formula == Formula::softmax) apply_units<Formula::softmax, T, R, V, kOneColumn>(a, places);
  else apply_units<Formula::softmax_backward, T, R, V, kOneColumn>(a, places);
}

template <class T, class R>
cudaError_t start(const NumberedApply& call, cudaStream_t stream) {
  constexpr int V = kGranule / sizeof(T);
  const int64_t elements = call.outer * call.entries * call.inner;
  ApplyArgs a{call.formula,
              call.x,
              call.g,
              call.y,
              call.r,
              call.numbers,
              {call.offsets, call.wide, call.count},
              static_cast<uint32_t>(call.count),
              0,
              static_cast<uint32_t>(call.inner)};
  const auto run = [&](auto kernel, int each, const Places& places) {
    a.units = static_cast<uint32_t>(elements / each);
    const uint32_t in_block = kThreads * applied_units(each);
    kernel<<<(a.units + in_block - 1) / in_block, kThreads, 0, stream>>>(a, places);
    return cudaGetLastError();
  };
  if (elements == 0) return cudaSuccess;
  if (takes_offsets(call)) return run(numbered<T, R, V, true>, V, {call.outer, 1, call.entries / V});
  if (elements_of_unit(call) == V) return run(numbered<T, R, V, false>, V, {call.outer, call.entries, call.inner / V});
  return run(numbered<T, R, 1, false>, 1, {call.outer, call.entries, call.inner});
}

template <class T>
cudaError_t start(const NumberedApply& call, cudaStream_t stream) {
  return call.out == call.in ? start<T, T>(call, stream) : start<T, float>(call, stream);
}

}  // namespace

cudaError_t copy_rows(const CopiedRows& call, cudaStream_t stream) {
  if (call.entries == 0 || call.outer == 0 || call.row_bytes == 0) return cudaSuccess;
  switch (word_of(call)) {
    case 16: return copy_words<uint4>(call, stream);
    case 8: return copy_words<uint2>(call, stream);
    case 4: return copy_words<uint32_t>(call, stream);
    case 2: return copy_words<uint16_t>(call, stream);
    default: return copy_words<uint8_t>(call, stream);
  }
}

cudaError_t number_entries(const void* offsets, bool wide, int64_t count, int64_t entries, int32_t* numbers,
                           cudaStream_t stream) {
  if (entries > 0)
    number<<<static_cast<uint32_t>((entries + kUnits - 1) / kUnits), kThreads, 0, stream>>>({offsets, wide, count}, entries,
                                                                                            numbers);
  return cudaGetLastError();
}

cudaError_t apply_numbered(const NumberedApply& call, cudaStream_t stream) {
  switch (call.in) {
    case DType::Float: return start<float>(call, stream);
    case DType::Half: return start<Half>(call, stream);
    case DType::BFloat16: return start<BFloat16>(call, stream);
    default: return cudaErrorNotSupported;
  }
}

}  // namespace gpureduce::cuda
