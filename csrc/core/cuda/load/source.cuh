// Sources: where a kernel's elements come from.
#pragma once

#include "../../plan/plan.h"
#include "../../problem/engine.h"
#include "../../problem/nest.h"
#include "vectors.cuh"

namespace gpureduce::cuda {

// A Place locates an element: an offset, or an offset in each of two inputs (nest.h). load_part() reads V neighbours at a
// place, beside() is the distance to a neighbour's place, and of_outputs() is the source for neighbouring outputs.

// Elements from the last aligned address to p.
template <int V, class In>
__device__ __forceinline__ int misalignment(const In* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) / sizeof(In) % V);
}

// Elements of a compiled dtype. Sums of magnitudes clear signs with one mask: of each word, or of the second word of each
// 8-byte element. Other operations mask whole elements, if at all. kSigned: loads keep the signs.
template <class In, bool kSigned = false>
struct Typed {
  using Element = In;
  using Place = int64_t;
  static constexpr int kRank = kFastRank;
  static constexpr bool kMasks = IsMasked<In>::value;
  static constexpr bool kDropsSigns = !kSigned && (std::is_same_v<In, float> || std::is_same_v<In, double> ||
                                                   std::is_same_v<In, Half> || std::is_same_v<In, BFloat16>);
  using Kept = std::conditional_t<kMasks, Masks, uint32_t>;  // all masks, or the kept bits of a (second) word
  const In* base;
  uint64_t policy;
  Kept masks;

  static Typed of(const void* base, uint64_t policy, const Masks& masks) {
    if constexpr (kMasks) return {static_cast<const In*>(base), policy, masks};
    else return {static_cast<const In*>(base), policy, masks.keep[1]};
  }

  // kBeyond: elements beyond `offset`, a constant that the load instruction adds for free.
  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<In, V> load(int64_t offset) const {
    return counted(load_vector<In, V>(base + offset + kBeyond, policy));
  }

  // If not `wanted`, loads nothing and returns padding.
  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<In, V> load_if(bool wanted, int64_t offset) const {
    using Bits = typename Vector<In, V>::Bits;
    const Bits otherwise = [&] {
      if constexpr (kMasks) return filled<Bits>(masks.padding);
      else return padding_vector<In, V>().bits;
    }();
    return counted(load_vector_if<In, V, kBeyond>(wanted, base + offset, policy, otherwise));
  }

  template <int V>
  __device__ __forceinline__ Vector<In, V> counted(Vector<In, V> x) const {
    if constexpr (kMasks) x.bits = masked(x.bits, masks);
    else if constexpr (kDropsSigns) x.bits = keep_bits<sizeof(In) == 8>(x.bits, masks);
    return x;
  }

  // For kernels that load with signs and clear them once, by drop_signs(): only sums of magnitudes need it.
  __device__ __forceinline__ Typed<In, true> with_signs() const { return {base, policy, masks}; }
  template <int V, int kCount, int kElements>
  __device__ __forceinline__ void drop_signs(Vector<In, V> (&x)[kCount][kElements]) const {
    if constexpr (kDropsSigns) {
      if (masks == ~0u) return;
#pragma unroll
      for (int i = 0; i < kCount * kElements; ++i) {
        auto& bits = x[i / kElements][i % kElements].bits;
        bits = keep_bits<sizeof(In) == 8>(bits, masks);
      }
    }
  }

  __device__ __forceinline__ const char* address(int64_t offset) const { return reinterpret_cast<const char*>(base + offset); }

  template <int V>
  __device__ __forceinline__ int misalignment(int64_t offset) const {
    return cuda::misalignment<V>(base + offset);
  }

  // The vector at `offset`, loaded element by element, with padding outside the input.
  template <int V>
  __device__ __forceinline__ Vector<In, V> load_inside(const InputSpan& input, int64_t offset) const {
    Vector<In, V> x;
#pragma unroll
    for (int j = 0; j < V; ++j) x.set(j, load_if<1>(inside(input, offset + j, offset + j + 1), offset + j)[0]);
    return x;
  }

  // True if the elements from `begin` to before `end` lie within the input's memory, perhaps in gaps between its elements.
  __device__ __forceinline__ bool inside(const InputSpan& input, int64_t begin, int64_t end) const {
    return address(begin) >= input.begin && address(end) <= input.end;
  }
};

// is_converted: elements are converted at run time (converted.cuh), so a load only notes their places. holds_numbers: the
// source holds a number of each output, its first or largest element. has_one_input: an addend is made by a map from one
// element, not from two.
template <class Source>
constexpr bool is_converted = false;
template <class Source>
constexpr bool holds_numbers = false;
template <class Element>
constexpr bool has_one_input = true;
template <class Source>
constexpr Engine engine_of = is_converted<Source>                        ? Engine::converted
                             : IsMapped<typename Source::Element>::value ? Engine::reduced
                                                                         : Engine::full;

// The vector at `at`, or kBeyond elements beyond it. kWhole: it exists; otherwise it is loaded only if `wanted`.
template <int V, bool kWhole, int kBeyond = 0, class Source>
__device__ __forceinline__ Vector<typename Source::Element, V> load_part(const Source& source, bool wanted,
                                                                         typename Source::Place at) {
  if constexpr (kWhole && !is_converted<Source>) return source.template load<V, kBeyond>(at);
  else return source.template load_if<V, kBeyond>(kWhole || wanted, at);
}

// The distance between the places of two elements, n apart in a contiguous run.
template <class Source>
__device__ __forceinline__ typename Source::Place beside(const Source& source, int64_t n) {
  if constexpr (std::is_same_v<typename Source::Place, Both>) return {n, source.same ? 0 : n};
  else return n;
}

// The source for N neighbouring outputs. The first one begins at `place` and has this number. It is `source` itself, or
// one that holds a number of each output, loaded if `wanted`.
template <int N, class Source>
__device__ __forceinline__ decltype(auto) of_outputs(const Source& source, bool wanted, typename Source::Place place,
                                                     int64_t number) {
  if constexpr (holds_numbers<Source>) return source.template holding<N>(wanted, place, number);
  else return (source);
}

// Loads a unit of a contiguous row: kCount groups of 32 * V neighbouring leaves, kElements of each leaf. The thread's first
// element is at `begin`. All loads are in flight at once. kWhole: all elements exist; otherwise only the next `left` do.
template <bool kWhole, int V, int kCount, int kElements, class Source>
__device__ __forceinline__ void load_unit(Vector<typename Source::Element, V> (&x)[kCount][kElements], const Source& source,
                                          typename Source::Place begin, int left) {
  for_constants(std::make_integer_sequence<int, kCount * kElements>{}, [&](auto i) {
    constexpr int g = decltype(i)::value / kElements, d = decltype(i)::value % kElements, kBeyond = g * kWarp * V + d * kLanes;
    x[g][d] = load_part<V, kWhole, kBeyond>(source, kBeyond + V <= left, begin);
  });
}

}  // namespace gpureduce::cuda
