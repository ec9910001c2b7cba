// Elements of any dtype, converted at run time, for calls without a compiled kernel. A kernel first finds the places of a
// unit's elements. Then one function call loads and converts several of them: their loads are in flight together, and the
// selection of the conversion, which takes longer than the conversion itself, is done once.
#pragma once

#include "../../numeric/indices.h"
#include "../early.cuh"
#include "../tree/joins.cuh"

namespace gpureduce::cuda {

// The dtype, map and signs of elements, known at run time. Packed into one word to save registers.
class Conversion {
 public:
  Conversion() = default;
  Conversion(DType dtype, Map map, bool negate, bool conjugate)
      : word_(static_cast<uint32_t>(dtype) | static_cast<uint32_t>(map) << 8 | uint32_t{negate} << 16 |
              uint32_t{conjugate} << 17) {}

  __device__ __forceinline__ DType dtype() const { return static_cast<DType>(word_ & 0xff); }
  __device__ __forceinline__ Map map() const { return static_cast<Map>(word_ >> 8 & 0xff); }
  // True if the view is lazily negated, or conjugated.
  __device__ __forceinline__ bool negates() const { return word_ >> 16 & 1; }
  __device__ __forceinline__ bool conjugates() const { return word_ >> 17 & 1; }

 private:
  uint32_t word_;
};

struct ConvertedInput {
  const void* base;
  uint64_t policy;
  Conversion conversion;
};

template <class T, int N>
struct Values {
  T of[N];
};

// Applies f to each value.
template <class To, class T, int N, class F>
__device__ __forceinline__ Values<To, N> each(const Values<T, N>& x, F f) {
  Values<To, N> made;
#pragma unroll
  for (int i = 0; i < N; ++i) made.of[i] = f(x.of[i]);
  return made;
}

// Copies `from` into `to` from `first` on.
template <class T, int N, int M>
__device__ __forceinline__ void put(Values<T, N>& to, int first, const Values<T, M>& from) {
#pragma unroll
  for (int i = 0; i < M; ++i) to.of[first + i] = from.of[i];
}

// Applies a view's lazy negation and conjugation. Gives the element's value; integers keep their own type.
template <class In>
__device__ __forceinline__ auto signed_element(In x, Conversion conversion) {
  if constexpr (std::is_integral_v<In>) {
    return conversion.negates() ? static_cast<In>(0 - static_cast<uint64_t>(x)) : x;
  } else if constexpr (std::is_same_v<In, Boolean>) {
    return x;
  } else {
    auto v = value(x);
    if constexpr (IsComplex<decltype(v)>::value) {
      if (conversion.conjugates()) v.im = -v.im;
      if (conversion.negates()) v = {-v.re, -v.im};
    } else if (conversion.negates()) {
      v = -v;
    }
    return v;
  }
}

// The type of an accumulator's number, or of its two numbers.
template <class Acc>
struct RealOf {
  using type = Number<Acc>;
};
template <class T>
struct RealOf<Complex<T>> {
  using type = T;
};

// Elements converted to numbers of the accumulator's type. `complex`: they were complex.
template <class Acc, int N>
struct ConvertedNumbers {
  using Real = typename RealOf<Acc>::type;
  Values<Complex<Real>, N> numbers;
  bool complex;

  // Sets the numbers from `first` on.
  template <class In, int M>
  __device__ __forceinline__ void set(int first, const Values<In, M>& x, Conversion conversion) {
    complex = IsComplex<In>::value;
    put(numbers, first, each<Complex<Real>>(x, [&](In v) { return number_of(signed_element(v, conversion)); }));
  }

  __device__ __forceinline__ Values<Acc, N> mapped(Map map) const {
    if constexpr (std::is_floating_point_v<Number<Acc>> && !IsProduct<Acc>::value) {
      if (map == Map::magnitude) return mapped_by([](auto x) { return magnitude(x); });
    }
    if constexpr (IsLargest<Acc>::value) {
      if (map == Map::negative) return each<Acc>(numbers, [](Complex<Real> x) { return opposite(Acc{x.re}); });
      if constexpr (std::is_floating_point_v<Real>)
        if (map == Map::negative_magnitude) return mapped_by([](auto x) { return -magnitude(x); });
    } else if constexpr (std::is_same_v<Acc, Product<double>>) {
      if (map == Map::cofactor)
        return each<Acc>(numbers, [](Complex<Real> x) { return gpureduce::mapped<Map::cofactor, Acc>(x.re); });
    } else if constexpr (std::is_floating_point_v<Acc>) {
      if (map == Map::number) return each<Acc>(numbers, [](Complex<Real> x) { return number_or_zero<Acc>(x.re); });
      if (map == Map::square) return mapped_by([](auto x) { return square(x); });
      if (map == Map::cube) return mapped_by([](auto x) { return cube(x); });
    }
    return each<Acc>(numbers, [](Complex<Real> x) -> Acc {
      if constexpr (IsComplex<Acc>::value) return x;
      else return {x.re};
    });
  }

 private:
  template <class T>
  static __device__ __forceinline__ Complex<Real> number_of(T v) {
    if constexpr (IsComplex<T>::value && !std::is_integral_v<Real>) return addend<Complex<Real>>(v);
    else if constexpr (IsLargest<Acc>::value) return {in_order<Acc>(v).value, 0};
    else return {addend<Real>(v), 0};
  }

  template <class F>
  __device__ __forceinline__ Values<Acc, N> mapped_by(F f) const {
    if (complex) return each<Acc>(numbers, [&](Complex<Real> x) { return Acc{f(x)}; });
    return each<Acc>(numbers, [&](Complex<Real> x) { return Acc{f(x.re)}; });
  }
};

// Elements per call of fetch().
template <class Acc>
constexpr int kFetchCount = 64 / converted_bytes<Acc>;
template <class Acc>
using Fetched = Values<Acc, kFetchCount<Acc>>;
template <class Acc>
using FetchOffsets = Values<int64_t, kFetchCount<Acc>>;

// True if some operation makes such accumulators from elements of a kind whose own accumulator is `own`. (Segments of real
// numbers use complex accumulators.)
template <class Acc>
constexpr bool is_made_of(Kind kind, Accumulator own) {
  using Real = typename RealOf<Acc>::type;
  if (kind == Kind::complex && IsProduct<Acc>::value) return false;
  if (IsLargest<Acc>::value && std::is_integral_v<Real> != (kind == Kind::integer)) return false;
  return !std::is_same_v<Real, float> || (own != Accumulator::f64 && own != Accumulator::c128);
}

// Loads the elements at some offsets and converts them to accumulators. Element i is padding unless bit i of `wanted` is set.
// Not inlined, so that its code exists once; by value, so that all stays in registers. kReal: elements are real, and are not
// mapped.
template <class Acc, bool kReal = false>
__device__ __noinline__ Fetched<Acc> fetch(ConvertedInput input, uint32_t wanted, FetchOffsets<Acc> offsets) {
  constexpr int N = kFetchCount<Acc>;
  // take(first, x) gets the elements from `first` on. Elements of more than 8 bytes need more registers and may come in two
  // halves.
  const auto with_elements = [&](auto take) {
    switch (input.conversion.dtype()) {
#define GPUREDUCE_CASE(name, type, kind, accumulator, wide, family)                                                   \
  case DType::name:                                                                                                   \
    if constexpr (is_made_of<Acc>(Kind::kind, Accumulator::accumulator) && !(kReal && Kind::kind == Kind::complex)) { \
      constexpr int M = sizeof(type) > 8 && N > 4 ? N / 2 : N;                                                        \
      const type* const base = static_cast<const type*>(input.base);                                                  \
      _Pragma("unroll") for (int first = 0; first < N; first += M) {                                                  \
        Values<type, M> x;                                                                                            \
        _Pragma("unroll") for (int i = 0; i < M; ++i) x.of[i] =                                                       \
            load_vector_if<type, 1>(wanted & 1u << (first + i), base + offsets.of[first + i], input.policy, {})[0];   \
        take(first, x);                                                                                               \
      }                                                                                                               \
    }                                                                                                                 \
    break;
      GPUREDUCE_DTYPES(GPUREDUCE_CASE)
#undef GPUREDUCE_CASE
    }
  };
  Fetched<Acc> fetched{};
  const auto put_each = [&](auto f) { with_elements([&](int first, const auto& x) { put(fetched, first, each<Acc>(x, f)); }); };
  if constexpr (std::is_same_v<Acc, Indexed>) {  // the caller knows the indices
    const bool smallest = input.conversion.map() == Map::negative;
    put_each([&](auto v) { return Indexed{indices::place_of(signed_element(v, input.conversion), smallest), 0}; });
  } else if constexpr (kReal) {
    put_each([&](auto v) { return addend<Acc>(signed_element(v, input.conversion)); });
  } else {
    bool counts = false;
    if constexpr (std::is_same_v<Acc, int64_t>) {
      counts = input.conversion.map() == Map::nonzero;
      if (counts) put_each([](auto v) { return static_cast<Acc>(nonzero(v)); });
    }
    if (!counts) {
      ConvertedNumbers<Acc, N> numbers{};
      with_elements([&](int first, const auto& x) { numbers.set(first, x, input.conversion); });
      fetched = numbers.mapped(input.conversion.map());
    }
  }
  if (wanted != (1u << N) - 1) {
#pragma unroll
    for (int i = 0; i < N; ++i) fetched.of[i] = wanted & 1u << i ? fetched.of[i] : padding<Acc>();
  }
  return fetched;
}

// The same for kAll elements. place_of(i): the offset of element i, and whether it exists.
struct PredicatedOffset {
  int64_t offset;
  bool wanted;
};
template <class Acc, int kAll, bool kReal = false, class PlaceOf>
__device__ __forceinline__ Values<Acc, kAll> fetch_all(const ConvertedInput& input, PlaceOf place_of) {
  constexpr int N = kFetchCount<Acc>;
  Values<Acc, kAll> all;
#pragma unroll
  for (int first = 0; first < kAll; first += N) {
    FetchOffsets<Acc> offsets{};
    uint32_t wanted = 0;
#pragma unroll
    for (int i = 0; i < N && first + i < kAll; ++i) {
      const PredicatedOffset place = place_of(first + i);
      offsets.of[i] = place.offset;
      wanted |= static_cast<uint32_t>(place.wanted) << i;
    }
    const auto fetched = fetch<Acc, kReal>(input, wanted, offsets);
#pragma unroll
    for (int i = 0; i < N && first + i < kAll; ++i) all.of[first + i] = fetched.of[i];
  }
  return all;
}

// A deferred element, loaded and converted later. Planners size it as the widest dtype.
template <class Acc>
struct Deferred {
  char bytes[converted_bytes<Acc>];
};
template <class Acc>
struct Vector<Deferred<Acc>, 1> {
  ConvertedInput input;
  PredicatedOffset place;

  __device__ __forceinline__ Acc operator[](int) const {
    return fetch_all<Acc, 1>(input, [this](int) { return place; }).of[0];
  }
};

// Turns loaded vectors into addends: fetches deferred elements, and leaves others as they are.
template <class Loaded, int kCount, int kElements>
__device__ __forceinline__ auto& resolve(const Loaded (&x)[kCount][kElements]) {
  return x;
}
template <class T, int kCount, int kElements>
struct Resolved {
  T x[kCount][kElements];
  __device__ __forceinline__ auto& operator[](int i) const { return x[i]; }
};
template <class Acc, int kCount, int kElements>
__device__ __forceinline__ auto resolve(const Vector<Deferred<Acc>, 1> (&x)[kCount][kElements]) {
  const auto at = [&](int i) -> auto& { return x[i / kElements][i % kElements]; };
  const auto all = fetch_all<Acc, kCount * kElements>(at(0).input, [&](int i) { return at(i).place; });
  Resolved<Vector<Acc, 1>, kCount, kElements> made;
#pragma unroll
  for (int i = 0; i < kCount * kElements; ++i) made.x[i / kElements][i % kElements].set(0, all.of[i]);
  return made;
}

// Fetches two real elements each, one from each input, and applies f to them. Missing ones give padding.
template <class Real, class Acc, class Pair, int kCount, int kElements, class F>
__device__ __forceinline__ auto fetch_pairs(const Vector<Pair, 1> (&x)[kCount][kElements], F f) {
  constexpr int kAll = kCount * kElements;
  const auto at = [&](int i) -> auto& { return x[i / kElements][i % kElements]; };
  const auto a =
      fetch_all<Real, kAll, true>(at(0).inputs.first, [&](int i) { return PredicatedOffset{at(i).at.first, at(i).wanted}; });
  const auto b =
      fetch_all<Real, kAll, true>(at(0).inputs.second, [&](int i) { return PredicatedOffset{at(i).at.second, at(i).wanted}; });
  Resolved<Vector<Acc, 1>, kCount, kElements> made;
#pragma unroll
  for (int i = 0; i < kAll; ++i)
    made.x[i / kElements][i % kElements].set(0, at(i).wanted ? f(a.of[i], b.of[i]) : padding<Acc>());
  return made;
}

// Elements of any dtype: for floats summed to integers, results of bool, 64-bit integers summed to floats, maps without
// compiled kernels, lazily negated or conjugated views, and views of many nested dims.
template <class Acc>
struct Converted {
  using Element = Deferred<Acc>;
  using Place = int64_t;
  static constexpr int kRank = kMaxRank;
  ConvertedInput input;

  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, 1> load_if(bool wanted, int64_t offset) const {
    static_assert(V == 1);
    return {input, {offset + kBeyond, wanted}};
  }
};

template <class Acc>
constexpr bool is_converted<Converted<Acc>> = true;

}  // namespace gpureduce::cuda
