// The rows that are a segment's entries.
//
// For example entries 0, 1 and 2 of a gather with the numbers 7, 0 and 7 and no weights: rows 7, 0 and 7, each times 1. Without
// a gather they are rows 0, 1 and 2.
#pragma once

#include "tiles.cuh"

namespace gpureduce::cuda {

// Entry i is row i.
struct OwnRows {
  static constexpr bool kGathers = false;
  struct Row {
    int64_t place;  // of its first element
    template <class Lanes>
    __device__ __forceinline__ void weigh(Lanes&) const {}
  };
  int64_t pitch;  // from a row to the next one

  // The row of entry begin + next.
  __device__ __forceinline__ Row row(bool, int64_t begin, int next) const { return {begin * pitch + next * pitch}; }
};

// Entries that a list numbers.
template <class Acc, bool kWeighs>
struct GatheredRows {
  using Weight = Number<Acc>;
  static constexpr bool kGathers = true;
  struct Row {
    int64_t place;
    Weight weight;
    template <class Lanes>
    __device__ __forceinline__ void weigh(Lanes& lanes) const {
      if constexpr (kWeighs) {
#pragma unroll
        for (auto& sum : lanes.sum) sum = weighted::times(sum, weight);
      }
    }
  };
  int64_t pitch, rows;
  const void* numbers;
  const Weight* weights;
  bool wide, by_row;
  uint64_t policy;

  __device__ __forceinline__ void check(int64_t number) const {
    assert(number >= 0 && number < rows && "an index is not in [0, the number of rows)");
  }
  __device__ __forceinline__ Row row(bool wanted, int64_t begin, int next) const {
    const uint32_t narrow =
        load_if<0>(wanted && !wide, static_cast<const uint32_t*>(numbers) + begin + next, uint32_t{0}, policy);
    const uint2 two = load_if<0>(wanted && wide, static_cast<const uint2*>(numbers) + begin + next, uint2{narrow, 0}, policy);
    const int64_t number = wide ? static_cast<int64_t>(uint64_t{two.y} << 32 | two.x) : static_cast<int32_t>(narrow);
    check(number);
    Row found{number * pitch, {}};
    if constexpr (kWeighs) {
      using Bits = typename Vector<Weight, 1>::Bits;
      const auto one = bit_cast<Bits>(Weight{1});  // -0.0 * 1 is still padding
      const Weight* const at = weights + (by_row ? number : begin + next);
      found.weight = bit_cast<Weight>(load_if<0>(wanted, reinterpret_cast<const Bits*>(at), one, policy));
    }
    return found;
  }
};

// Either of them, known at run time, with weights of an accumulator's numbers.
template <class Acc>
struct AnyRows {
  using Weight = typename RealOf<Acc>::type;
  int64_t pitch, rows;
  const void* numbers;  // null if entry i is row i
  const Weight* weights;
  bool wide, by_row;
  const Weight* largest;  // of each result; not null if elements count as e^(x - largest)

  __device__ __forceinline__ int64_t number(int64_t entry) const {
    if (!numbers) return entry;
    const int64_t found = integer_at(numbers, wide, entry);
    assert(found >= 0 && found < rows && "an index is not in [0, the number of rows)");
    return found;
  }
  __device__ __forceinline__ int64_t place(int64_t entry) const { return number(entry) * pitch; }
  // Real numbers are the real parts of complex accumulators.
  __device__ __forceinline__ void weigh(int64_t entry, Acc& v) const {
    const Weight weight = weights[by_row ? number(entry) : entry];
    if constexpr (IsComplex<Acc>::value) v.re = weighted::times(v.re, weight);
    else if constexpr (!kHolds<Acc>) v = weighted::times(v, weight);
  }
};

// Not inlined, since it is a lot of code.
template <class A>
__device__ __noinline__ A exponentiated(A x) {
  return exponential_or_zero(x);
}

}  // namespace gpureduce::cuda
