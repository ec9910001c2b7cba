// The sources of weighted sums, variances, sums of exponentials and indices: an addend is made from two operands (weighted.h,
// variance.h, exponents.h, indices.h).
#pragma once

#include "../../numeric/exponents.h"
#include "../../numeric/indices.h"
#include "../../numeric/variance.h"
#include "../../numeric/weighted.h"
#include "../../problem/nest.h"
#include "converted.cuh"

namespace gpureduce {

template <class A, class B> struct IsMapped<Factors<A, B>> : std::true_type {};
template <class In> struct IsMapped<Deviation<In>> : std::true_type {};
template <class In> struct IsMapped<Exponent<In>> : std::true_type {};
template <class In> struct IsMapped<Ranked<In>> : std::true_type {};

}  // namespace gpureduce

namespace gpureduce::cuda {

// True for deviations. `In` is the dtype of their elements.
template <class T> struct IsDeviation : std::false_type {};
template <class T>
struct IsDeviation<Deviation<T>> : std::true_type {
  using In = T;
};

template <class A, class B>
constexpr bool has_one_input<Factors<A, B>> = false;
template <class In>
constexpr bool has_one_input<Deviation<In>> = false;
template <class In>
constexpr bool has_one_input<Exponent<In>> = false;
template <class In>
constexpr bool has_one_input<Ranked<In>> = false;

// --- products -------------------------------------------------------------------------------------------------------------

// V pairs from two loads. If neighbours share one element of the second input, only that one is loaded, as `one`. The unused
// load is predicated off in all threads alike, which costs less than separate kernels.
template <class A, class B, int V>
struct Vector<Factors<A, B>, V> {
  Vector<A, V> first;
  Vector<B, V> second;
  Vector<B, 1> one;
  bool same;

  __device__ __forceinline__ Factors<A, B> operator[](int j) const { return {first[j], V > 1 && same ? one[0] : second[j]}; }

  // The second elements. A shared one is broadcast in whole words.
  __device__ __forceinline__ Vector<B, V> seconds() const {
    if constexpr (V == 1) {
      return second;
    } else if constexpr (V * sizeof(B) < 4) {
      Vector<B, V> filled;
#pragma unroll
      for (int j = 0; j < V; ++j) filled.set(j, same ? one[0] : second[j]);
      return filled;
    } else {
      static_assert(sizeof(B) <= 4);  // pairs of 8-byte elements come one at a time
      const uint32_t word = one.bits * (sizeof(B) == 1 ? 0x01010101u : sizeof(B) == 2 ? 0x00010001u : 1u);
      uint32_t words[V * sizeof(B) / 4];
#pragma unroll
      for (int w = 0; w < static_cast<int>(V * sizeof(B) / 4); ++w) words[w] = same ? word : second.word(w);
      Vector<B, V> filled;
      memcpy(&filled, words, sizeof(filled));
      return filled;
    }
  }
};

template <class T, class A, class B, int V>
__device__ __forceinline__ void unpack(const Vector<Factors<A, B>, V>& x, T (&to)[V]) {
  const auto seconds = x.seconds();
#pragma unroll
  for (int j = 0; j < V; ++j) to[j] = addend<T>(Factors<A, B>{x.first[j], seconds[j]});
}

// Two inputs of compiled dtypes. A missing second element is 1, so that a missing product is the first element's padding.
template <class A, class B>
struct Pair {
  using Element = Factors<A, B>;
  using Place = Both;
  static constexpr int kRank = kFastRank;
  const A* first;
  const B* second;
  uint64_t first_policy, second_policy;
  bool same;  // neighbours share one element of the second input

  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, V> load(Both at) const {
    return {load_vector<A, V>(first + at.first + kBeyond, first_policy), second_if<V, kBeyond>(true, at), one_if<V>(true, at),
            same};
  }
  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, V> load_if(bool wanted, Both at) const {
    return {load_vector_if<A, V, kBeyond>(wanted, first + at.first, first_policy, padding_vector<A, V>().bits),
            second_if<V, kBeyond>(wanted, at), one_if<V>(wanted, at), same};
  }

 private:
  template <int V>
  static __device__ __forceinline__ Vector<B, V> ones() {
    Vector<B, V> v;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (std::is_same_v<B, Boolean>) v.set(j, {1});
      else v.set(j, element_of<B>(1));
    }
    return v;
  }
  template <int V, int kBeyond>
  __device__ __forceinline__ Vector<B, V> second_if(bool wanted, Both at) const {
    if constexpr (V == 1)
      return load_vector_if<B, 1>(wanted, second + at.second + (same ? 0 : kBeyond), second_policy, ones<1>().bits);
    else return load_vector_if<B, V, kBeyond>(wanted && !same, second + at.second, second_policy, ones<V>().bits);
  }
  template <int V>
  __device__ __forceinline__ Vector<B, 1> one_if(bool wanted, Both at) const {
    if constexpr (V == 1) return {};
    else return load_vector_if<B, 1>(wanted && same, second + at.second, second_policy, ones<1>().bits);
  }
};

// --- deviations and exponents ---------------------------------------------------------------------------------------------

// An element type whose addends are made with a number of the element's output. Of deviations it is the output's first element,
// of exponents the largest one. In: of the elements. Number: the number's type. missing(): what stands for a missing element.
template <class E>
struct Numbered {};
template <class T>
struct Numbered<Deviation<T>> {
  using In = T;
  using Number = T;
  static __device__ __forceinline__ T missing() { return {}; }  // unpack() takes the first element instead
};
template <class T>
struct Numbered<Exponent<T>> {
  using In = T;
  using Number = exponents::Computed<T>;
  static __device__ __forceinline__ T missing() { return element_of<T>(-INFINITY); }  // e^-inf is +0, and no addend is -0
};

// V elements, and the number of each one's output.
template <class E, int V>
struct NumberedElements {
  using In = typename Numbered<E>::In;
  using Number = typename Numbered<E>::Number;
  Vector<In, V> elements;
  Number numbers[V];
  bool wanted;
};

template <class In, int V>
struct Vector<Deviation<In>, V> : NumberedElements<Deviation<In>, V> {
  __device__ __forceinline__ Difference<In> operator[](int j) const { return {this->elements[j], this->numbers[j]}; }
};
template <class In, int V>
struct Vector<Exponent<In>, V> : NumberedElements<Exponent<In>, V> {
  using A = exponents::Computed<In>;
  __device__ __forceinline__ Exponential<In, A> operator[](int j) const { return {this->elements[j], this->numbers[j]}; }
};

// A missing element counts as a copy of the first: its deviation is +0, as the first element's own is, so the sums keep their
// bits.
template <class T, class In, int V>
__device__ __forceinline__ void unpack(const Vector<Deviation<In>, V>& x, T (&to)[V]) {
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const double element = value(x.elements[j]), first = value(x.numbers[j]);
    to[j] = variance::moments_of(x.wanted ? element : first, first);
  }
}

// The elements of kOutputs neighbouring outputs, with the number of each output.
template <class E, int kOutputs>
struct Held {
  using Element = E;
  using Place = int64_t;
  using In = typename Numbered<E>::In;
  const In* base;
  uint64_t policy;
  typename Numbered<E>::Number numbers[kOutputs];

  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<E, V> load(int64_t offset) const {
    return with_numbers(load_vector<In, V>(base + offset + kBeyond, policy), true);
  }
  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<E, V> load_if(bool wanted, int64_t offset) const {
    Vector<In, V> missing;
#pragma unroll
    for (int j = 0; j < V; ++j) missing.set(j, Numbered<E>::missing());
    return with_numbers(load_vector_if<In, V, kBeyond>(wanted, base + offset, policy, missing.bits), wanted);
  }

 private:
  template <int V>
  __device__ __forceinline__ Vector<E, V> with_numbers(Vector<In, V> x, bool wanted) const {
    Vector<E, V> v;
    v.elements = x;
#pragma unroll
    for (int j = 0; j < V; ++j) v.numbers[j] = numbers[kOutputs == 1 ? 0 : j];
    v.wanted = wanted;
    return v;
  }
};

template <class In>
struct Deviations {
  using Element = Deviation<In>;
  using Place = int64_t;
  static constexpr int kRank = kFastRank;
  const In* base;
  uint64_t policy;

  template <int N>
  __device__ __forceinline__ Held<Element, N> holding(bool wanted, int64_t place, int64_t) const {
    Held<Element, N> held{base, policy, {}};
    const auto first = load_vector_if<In, N>(wanted, base + place, policy, typename Vector<In, N>::Bits{});
#pragma unroll
    for (int j = 0; j < N; ++j) held.numbers[j] = first[j];
    return held;
  }
};
template <class In>
constexpr bool holds_numbers<Deviations<In>> = true;

// kAligned: the largest elements of N outputs lie in whole granules.
template <class In, bool kAligned = false>
struct Exponents {
  using Element = Exponent<In>;
  using Place = int64_t;
  using Number = exponents::Computed<In>;
  static constexpr int kRank = kFastRank;
  const In* base;
  uint64_t policy, number_policy;
  const Number* largest;

  template <int N>
  __device__ __forceinline__ Held<Element, N> holding(bool wanted, int64_t, int64_t number) const {
    Held<Element, N> held{base, policy, {}};
    constexpr int kCount = kAligned ? granule_values<Number>(N) : 1;
#pragma unroll
    for (int j = 0; j < N; j += kCount) {
      const auto some = load_vector_if<Number, kCount>(wanted, largest + number + j, number_policy, {});
#pragma unroll
      for (int i = 0; i < kCount; ++i) held.numbers[j + i] = some[i];
    }
    return held;
  }
};
template <class In, bool kAligned>
constexpr bool holds_numbers<Exponents<In, kAligned>> = true;

// --- indices --------------------------------------------------------------------------------------------------------------

// V elements, with the index of the first one. If neighbours belong to different outputs, all have the `same` index.
template <class In, int V>
struct Vector<Ranked<In>, V> {
  Vector<In, V> elements;
  int64_t index;
  bool same, smallest, wanted;

  __device__ __forceinline__ Candidate<In> operator[](int j) const {
    return {elements[j], index + (same ? 0 : j), smallest, wanted};
  }
};

// The second strides count the elements. Nobody reads a second input.
template <class In>
struct Indices {
  using Element = Ranked<In>;
  using Place = Both;
  static constexpr int kRank = kFastRank;
  const In* base;
  uint64_t policy;
  bool same, smallest;

  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, V> load(Both at) const {
    return {load_vector<In, V>(base + at.first + kBeyond, policy), index_of<kBeyond>(at), same, smallest, true};
  }
  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, V> load_if(bool wanted, Both at) const {
    const auto elements = load_vector_if<In, V, kBeyond>(wanted, base + at.first, policy, typename Vector<In, V>::Bits{});
    return {elements, index_of<kBeyond>(at), same, smallest, wanted};
  }

 private:
  template <int kBeyond>
  __device__ __forceinline__ int64_t index_of(Both at) const {
    return at.second + (same ? 0 : kBeyond);
  }
};

// --- of any dtypes --------------------------------------------------------------------------------------------------------

// An addend that resolve() makes of elements, which it loads and converts: Made::made() makes all of a thread's at once.
template <class Made>
struct DeferredAddend {
  char bytes[kGranule];
};
template <class Made>
struct Vector<DeferredAddend<Made>, 1> : Made {
  __device__ __forceinline__ auto operator[](int) const {
    const Vector single[1][1] = {{*this}};
    return Made::made(single).x[0][0][0];
  }
};
template <class Made, int kCount, int kElements>
__device__ __forceinline__ auto resolve(const Vector<DeferredAddend<Made>, 1> (&x)[kCount][kElements]) {
  return Made::made(x);
}
template <class Made>
constexpr bool has_one_input<DeferredAddend<Made>> = false;

// Fetches a real element each, as `Fetched`, and applies f to it and to what is deferred. Missing ones give padding.
template <class Fetched, class Acc, class Deferred, int kCount, int kElements, class F>
__device__ __forceinline__ auto fetch_each(const Vector<Deferred, 1> (&x)[kCount][kElements], F f) {
  constexpr int kAll = kCount * kElements;
  const auto at = [&](int i) -> auto& { return x[i / kElements][i % kElements]; };
  const auto found = fetch_all<Fetched, kAll, true>(at(0).input, [&](int i) { return at(i).place; });
  Resolved<Vector<Acc, 1>, kCount, kElements> made;
#pragma unroll
  for (int i = 0; i < kAll; ++i) {
    const Acc addend = f(found.of[i], at(i));
    made.x[i / kElements][i % kElements].set(0, at(i).place.wanted ? addend : padding<Acc>());
  }
  return made;
}

struct TwoInputs { ConvertedInput first, second; };

// A product of two elements. `product`: the type it is rounded to.
template <class Acc>
struct ConvertedProduct {
  TwoInputs inputs;
  Accumulator product;
  bool truth, wanted;
  Both at;

  template <int kCount, int kElements>
  static __device__ __forceinline__ auto made(const Vector<DeferredAddend<ConvertedProduct>, 1> (&x)[kCount][kElements]) {
    const auto& common = x[0][0];
    const auto multiply = [&](auto product) {
      return fetch_pairs<decltype(product), Acc>(
          x, [&](auto a, auto b) { return weighted::counted<Acc>(weighted::times(a, b), common.truth); });
    };
    if constexpr (std::is_integral_v<Acc>) {
      if (common.product == Accumulator::f32) return multiply(float{});
      if (common.product == Accumulator::f64) return multiply(double{});
    }
    return multiply(Acc{});
  }
};

template <class Acc>
struct ConvertedPair {
  using Element = DeferredAddend<ConvertedProduct<Acc>>;
  using Place = Both;
  static constexpr int kRank = kMaxRank;
  TwoInputs inputs;
  Accumulator product;
  bool truth, same;

  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, 1> load_if(bool wanted, Both at) const {
    static_assert(V == 1);
    return {{inputs, product, truth, wanted, at + beside(*this, kBeyond)}};
  }
};
template <class Acc>
constexpr bool is_converted<ConvertedPair<Acc>> = true;

// A deviation from an output's first element, which is fetched again with each element.
struct ConvertedDifference {
  TwoInputs inputs;
  bool wanted;
  Both at;

  template <int kCount, int kElements>
  static __device__ __forceinline__ auto made(const Vector<DeferredAddend<ConvertedDifference>, 1> (&x)[kCount][kElements]) {
    return fetch_pairs<double, Moments>(x, [](double element, double first) { return variance::moments_of(element, first); });
  }
};

struct HeldConvertedDeviations {
  using Element = DeferredAddend<ConvertedDifference>;
  using Place = int64_t;
  ConvertedInput input;
  int64_t first;

  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, 1> load_if(bool wanted, int64_t offset) const {
    static_assert(V == 1);
    return {{{input, input}, wanted, {offset + kBeyond, first}}};
  }
};

struct ConvertedDeviations {
  using Element = DeferredAddend<ConvertedDifference>;
  using Place = int64_t;
  static constexpr int kRank = kMaxRank;
  ConvertedInput input;

  template <int N>
  __device__ __forceinline__ HeldConvertedDeviations holding(bool, int64_t place, int64_t) const {
    return {input, place};
  }
};
template <>
inline constexpr bool holds_numbers<ConvertedDeviations> = true;
template <>
inline constexpr bool is_converted<ConvertedDeviations> = true;
template <>
inline constexpr bool is_converted<HeldConvertedDeviations> = true;

// Acc: float or double.
template <class Acc>
struct ConvertedExponential {
  ConvertedInput input;
  PredicatedOffset place;
  Acc largest;

  template <int kCount, int kElements>
  static __device__ __forceinline__ auto made(const Vector<DeferredAddend<ConvertedExponential>, 1> (&x)[kCount][kElements]) {
    return fetch_each<Acc, Acc>(
        x, [](Acc element, const ConvertedExponential& of) { return exponential_or_zero(element - of.largest); });
  }
};

template <class Acc>
struct HeldConvertedExponents {
  using Element = DeferredAddend<ConvertedExponential<Acc>>;
  using Place = int64_t;
  ConvertedInput input;
  Acc largest;

  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, 1> load_if(bool wanted, int64_t offset) const {
    static_assert(V == 1);
    return {{input, {offset + kBeyond, wanted}, largest}};
  }
};

template <class Acc>
struct ConvertedExponents {
  using Element = DeferredAddend<ConvertedExponential<Acc>>;
  using Place = int64_t;
  static constexpr int kRank = kMaxRank;
  ConvertedInput input;
  const Acc* largest;

  template <int N>
  __device__ __forceinline__ HeldConvertedExponents<Acc> holding(bool wanted, int64_t, int64_t number) const {
    static_assert(N == 1);
    return {input, wanted ? largest[number] : Acc{}};
  }
};
template <class Acc>
constexpr bool holds_numbers<ConvertedExponents<Acc>> = true;
template <class Acc>
constexpr bool is_converted<ConvertedExponents<Acc>> = true;
template <class Acc>
constexpr bool is_converted<HeldConvertedExponents<Acc>> = true;

// An element's place in the order, with its index.
struct ConvertedCandidate {
  ConvertedInput input;
  PredicatedOffset place;
  int64_t index;

  template <int kCount, int kElements>
  static __device__ __forceinline__ auto made(const Vector<DeferredAddend<ConvertedCandidate>, 1> (&x)[kCount][kElements]) {
    return fetch_each<Indexed, Indexed>(
        x, [](Indexed found, const ConvertedCandidate& of) { return Indexed{found.place, of.index}; });
  }
};

struct ConvertedIndices {
  using Element = DeferredAddend<ConvertedCandidate>;
  using Place = Both;
  static constexpr int kRank = kMaxRank;
  ConvertedInput input;
  bool same;  // neighbours belong to different outputs, and have the same index

  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<Element, 1> load_if(bool wanted, Both at) const {
    static_assert(V == 1);
    const Both moved = at + beside(*this, kBeyond);
    return {{input, {moved.first, wanted}, moved.second}};
  }
};
template <>
inline constexpr bool is_converted<ConvertedIndices> = true;

}  // namespace gpureduce::cuda
