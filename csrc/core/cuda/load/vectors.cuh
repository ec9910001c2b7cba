// Vectors of elements: loads, padding, and masks of whole words.
#pragma once

#include <type_traits>
#include <utility>

#include "../../numeric/map.h"
#include "../../plan/limits.h"
#include "masks.h"

namespace gpureduce::cuda {

template <int kBytes> struct Word;
template <> struct Word<1> { using type = uint8_t; };
template <> struct Word<2> { using type = uint16_t; };
template <> struct Word<4> { using type = uint32_t; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };

// V elements from one load. They stay packed in words until they are used: unpacked, each would take a register, even a byte.
template <class Element, int V>
struct Vector {
  using Bits = typename Word<sizeof(Element) * V>::type;
  Bits bits;

  __device__ __forceinline__ Element operator[](int j) const {
    if constexpr (sizeof(Element) == 2 && V > 1) {  // a shift, which the compiler merges with the next instruction
      return bit_cast<Element>(static_cast<uint16_t>(word(j / 2) >> j % 2 * 16));
    } else {
      return reinterpret_cast<const Element*>(&bits)[j];
    }
  }
  __device__ __forceinline__ void set(int j, Element x) { reinterpret_cast<Element*>(&bits)[j] = x; }
  __device__ __forceinline__ uint32_t word(int w) const { return reinterpret_cast<const uint32_t*>(&bits)[w]; }
};

// The number `x` as an element.
template <class Element>
__device__ __forceinline__ Element element_of(float x) {
  if constexpr (std::is_arithmetic_v<Element>) return static_cast<Element>(x);
  else return result<Element>(x);
}

// The padding in an element's own format: -0.0 for floats and 0 for integers that are added, 1 for factors, and the lowest
// number for maxima.
template <class Element>
struct Padding {
  static __device__ __forceinline__ Element element() {
    if constexpr (IsComplex<Element>::value) {
      const auto half = Padding<decltype(Element::re)>::element();
      return {half, half};
    } else if constexpr (std::is_arithmetic_v<Element> || kHolds<Element>) {
      return padding<Element>();
    } else if constexpr (std::is_same_v<Element, Boolean>) {
      return {0};
    } else {
      return {static_cast<decltype(Element::bits)>(1u << (8 * sizeof(Element) - 1))};
    }
  }
};
template <class In, Map map>
struct Padding<Mapped<In, map>> {
  static __device__ __forceinline__ Mapped<In, map> element() {
    if constexpr (map == Map::factor) return {element_of<In>(1)};
    else return {Padding<In>::element()};
  }
};
template <class In>
struct Padding<Ordered<In>> {
  static __device__ __forceinline__ Ordered<In> element() {
    if constexpr (std::is_integral_v<In>) return {lowest<In>()};
    else return {element_of<In>(-INFINITY)};
  }
};

template <class Element, int V>
__device__ __forceinline__ Vector<Element, V> padding_vector() {
  Vector<Element, V> v;
#pragma unroll
  for (int j = 0; j < V; ++j) v.set(j, Padding<Element>::element());
  return v;
}

// Keeps the elements of `x` from `begin` to before `end`, and puts padding elsewhere, with bit masks of whole words.
template <class Element, int V>
__device__ __forceinline__ Vector<Element, V> keep(const Vector<Element, V>& x, int begin, int end) {
  // The mask of the bits of word w that lie at or after a byte of the vector.
  const auto above = [](int byte, int w) { return __funnelshift_lc(0u, ~0u, 8 * min(max(byte - 4 * w, 0), 4)); };
  const auto rest = padding_vector<Element, V>();
  uint32_t words[V * sizeof(Element) / 4];
#pragma unroll
  for (int w = 0; w < static_cast<int>(V * sizeof(Element) / 4); ++w) {
    const uint32_t mask = above(begin * sizeof(Element), w) & ~above(end * sizeof(Element), w);
    words[w] = (x.word(w) & mask) | (rest.word(w) & ~mask);
  }
  Vector<Element, V> v;
  memcpy(&v, words, sizeof(v));
  return v;
}

// The number of neighbouring values, of `count`, that are stored at once.
template <class T>
constexpr int granule_values(int count) {
  return count < static_cast<int>(kGranule / sizeof(T)) ? count : kGranule / sizeof(T);
}

// Stores values in whole granules: the granule that begins with value g goes to at(g).
template <class T, int V, class At>
__device__ __forceinline__ void store_granules(At at, const T (&values)[V]) {
  constexpr int kCount = granule_values<T>(V);
#pragma unroll
  for (int g = 0; g < V; g += kCount) {
    Vector<T, kCount> granule;
#pragma unroll
    for (int j = 0; j < kCount; ++j) granule.set(j, values[g + j]);
    reinterpret_cast<Vector<T, kCount>*>(at(g))->bits = granule.bits;
  }
}

// The load instruction, with an L2 policy (l2_policy() in launch.h). Its asm is volatile, so that no load moves before
// wait_for_previous_kernel(). It is not .nc, which is only for memory that nobody writes while the kernel runs: until that wait
// is over, the previous kernel may still write.
#if __CUDA_ARCH__ >= 800
#define GPUREDUCE_LOAD(type) "ld.global.L2::cache_hint." type
#define GPUREDUCE_POLICY(operand) ", %" #operand
#else
#define GPUREDUCE_LOAD(type) "ld.global." type
#define GPUREDUCE_POLICY(operand) ""
#endif

// Loads from `p` plus kBeyond bytes if `wanted` is not 0, and otherwise gives `otherwise`. In assembly, because the compiler
// would move a conditional load next to its use, and a thread's loads would no longer be in flight together.
template <int kBeyond>
__device__ __forceinline__ uint4 load_if(uint32_t wanted, const uint4* p, uint4 otherwise, uint64_t policy) {
  uint4 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %5, 0;"
      " mov.u32 %0, %6; mov.u32 %1, %7; mov.u32 %2, %8; mov.u32 %3, %9;"
      " @q " GPUREDUCE_LOAD("v4.u32") " {%0, %1, %2, %3}, [%4 + %10]" GPUREDUCE_POLICY(11) "; }"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(wanted), "r"(otherwise.x), "r"(otherwise.y), "r"(otherwise.z), "r"(otherwise.w), "n"(kBeyond), "l"(policy));
  return v;
}
template <int kBeyond>
__device__ __forceinline__ uint2 load_if(uint32_t wanted, const uint2* p, uint2 otherwise, uint64_t policy) {
  uint2 v;
  asm volatile(
      "{ .reg .pred q; setp.ne.u32 q, %3, 0; mov.u32 %0, %4; mov.u32 %1, %5;"
      " @q " GPUREDUCE_LOAD("v2.u32") " {%0, %1}, [%2 + %6]" GPUREDUCE_POLICY(7) "; }"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(p), "r"(wanted), "r"(otherwise.x), "r"(otherwise.y), "n"(kBeyond), "l"(policy));
  return v;
}
#define GPUREDUCE_LOADS(type, suffix)                                                                         \
  template <int kBeyond>                                                                                      \
  __device__ __forceinline__ type load_if(uint32_t wanted, const type* p, type otherwise, uint64_t policy) {  \
    uint32_t v;                                                                                               \
    asm volatile(                                                                                             \
        "{ .reg .pred q; setp.ne.u32 q, %2, 0; mov.u32 %0, %3;"                                               \
        " @q " GPUREDUCE_LOAD(suffix) " %0, [%1 + %4]" GPUREDUCE_POLICY(5) "; }"                              \
        : "=&r"(v)                                                                                            \
        : "l"(p), "r"(wanted), "r"(static_cast<uint32_t>(otherwise)), "n"(kBeyond), "l"(policy));             \
    return static_cast<type>(v);                                                                              \
  }                                                                                                           \
  __device__ __forceinline__ type load_always(const type* p, uint64_t policy) {                               \
    uint32_t v;                                                                                               \
    asm volatile(GPUREDUCE_LOAD(suffix) " %0, [%1]" GPUREDUCE_POLICY(2) ";" : "=r"(v) : "l"(p), "l"(policy)); \
    return static_cast<type>(v);                                                                              \
  }
GPUREDUCE_LOADS(uint32_t, "u32")
GPUREDUCE_LOADS(uint16_t, "u16")
GPUREDUCE_LOADS(uint8_t, "u8")
#undef GPUREDUCE_LOADS
__device__ __forceinline__ uint2 load_always(const uint2* p, uint64_t policy) {
  uint2 v;
  asm volatile(GPUREDUCE_LOAD("v2.u32") " {%0, %1}, [%2]" GPUREDUCE_POLICY(3) ";" : "=r"(v.x), "=r"(v.y) : "l"(p), "l"(policy));
  return v;
}
__device__ __forceinline__ uint4 load_always(const uint4* p, uint64_t policy) {
  uint4 v;
  asm volatile(GPUREDUCE_LOAD("v4.u32") " {%0, %1, %2, %3}, [%4]" GPUREDUCE_POLICY(5) ";"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}

// V elements of 4 or of 2 bytes. Only a running kernel knows the size. Each size is loaded into registers of its own, so that
// no load waits for another.
template <int V>
struct Either {
  uint32_t wide[V], narrow;  // narrow: V elements
};
__device__ __forceinline__ Either<2> load_either(bool wide, bool narrow, const void* p, const Either<2>& otherwise,
                                                 uint64_t policy) {
  Either<2> v;
  asm volatile(
      "{ .reg .pred q, r; setp.ne.u32 q, %4, 0; setp.ne.u32 r, %5, 0; mov.u32 %0, %6; mov.u32 %1, %7; mov.u32 %2, %8;"
      " @q " GPUREDUCE_LOAD("v2.u32") " {%0, %1}, [%3]" GPUREDUCE_POLICY(9) ";"
      " @r " GPUREDUCE_LOAD("u32") " %2, [%3]" GPUREDUCE_POLICY(9) "; }"
      : "=&r"(v.wide[0]), "=&r"(v.wide[1]), "=&r"(v.narrow)
      : "l"(p), "r"(static_cast<uint32_t>(wide)), "r"(static_cast<uint32_t>(narrow)), "r"(otherwise.wide[0]),
        "r"(otherwise.wide[1]), "r"(otherwise.narrow), "l"(policy));
  return v;
}
__device__ __forceinline__ Either<1> load_either(bool wide, bool narrow, const void* p, const Either<1>& otherwise,
                                                 uint64_t policy) {
  Either<1> v;
  asm volatile(
      "{ .reg .pred q, r; setp.ne.u32 q, %3, 0; setp.ne.u32 r, %4, 0; mov.u32 %0, %5; mov.u32 %1, %6;"
      " @q " GPUREDUCE_LOAD("u32") " %0, [%2]" GPUREDUCE_POLICY(7) ";"
      " @r " GPUREDUCE_LOAD("u16") " %1, [%2]" GPUREDUCE_POLICY(7) "; }"
      : "=&r"(v.wide[0]), "=&r"(v.narrow)
      : "l"(p), "r"(static_cast<uint32_t>(wide)), "r"(static_cast<uint32_t>(narrow)), "r"(otherwise.wide[0]),
        "r"(otherwise.narrow), "l"(policy));
  return v;
}
#undef GPUREDUCE_LOAD
#undef GPUREDUCE_POLICY

// Clears the bits that `mask` does not have; with kPairs only in the second word of each pair.
template <bool kPairs>
__device__ __forceinline__ uint16_t keep_bits(uint16_t x, uint32_t mask) {
  return x & static_cast<uint16_t>(mask);
}
template <bool kPairs>
__device__ __forceinline__ uint32_t keep_bits(uint32_t x, uint32_t mask) {
  return x & mask;
}
template <bool kPairs>
__device__ __forceinline__ uint2 keep_bits(uint2 x, uint32_t mask) {
  return {kPairs ? x.x : x.x & mask, x.y & mask};
}
template <bool kPairs>
__device__ __forceinline__ uint4 keep_bits(uint4 x, uint32_t mask) {
  return {kPairs ? x.x : x.x & mask, x.y & mask, kPairs ? x.z : x.z & mask, x.w & mask};
}

// Masks both words of a pair: clears bits that `keep` does not have, then flips the bits of `turn`.
__device__ __forceinline__ uint32_t masked(uint32_t x, uint32_t keep, uint32_t turn) { return (x & keep) ^ turn; }
__device__ __forceinline__ uint8_t masked(uint8_t x, const Masks& m) { return masked(uint32_t{x}, m.keep[0], m.turn[0]); }
__device__ __forceinline__ uint16_t masked(uint16_t x, const Masks& m) { return masked(uint32_t{x}, m.keep[0], m.turn[0]); }
__device__ __forceinline__ uint32_t masked(uint32_t x, const Masks& m) { return masked(x, m.keep[0], m.turn[0]); }
__device__ __forceinline__ uint2 masked(uint2 x, const Masks& m) {
  return {masked(x.x, m.keep[0], m.turn[0]), masked(x.y, m.keep[1], m.turn[1])};
}
__device__ __forceinline__ uint4 masked(uint4 x, const Masks& m) {
  return {masked(x.x, m.keep[0], m.turn[0]), masked(x.y, m.keep[1], m.turn[1]), masked(x.z, m.keep[0], m.turn[0]),
          masked(x.w, m.keep[1], m.turn[1])};
}

// Fills a load with the pair of words `x`.
template <class Bits>
__device__ __forceinline__ Bits filled(const uint32_t (&x)[2]) {
  if constexpr (sizeof(Bits) <= 4) return static_cast<Bits>(x[0]);
  else if constexpr (sizeof(Bits) == 8) return {x[0], x[1]};
  else return {x[0], x[1], x[0], x[1]};
}

// Calls f with the constants 0, 1, ...: kBeyond of a load must be a compile-time constant.
template <class F, int... i>
__device__ __forceinline__ void for_constants(std::integer_sequence<int, i...>, F f) {
  (f(std::integral_constant<int, i>{}), ...);
}

template <class Element, int V>
__device__ __forceinline__ Vector<Element, V> load_vector(const Element* p, uint64_t policy) {
  return {load_always(reinterpret_cast<const typename Vector<Element, V>::Bits*>(p), policy)};
}

// The same if `wanted`, else `otherwise`.
template <class Element, int V, int kBeyond = 0>
__device__ __forceinline__ Vector<Element, V> load_vector_if(uint32_t wanted, const Element* p, uint64_t policy,
                                                             typename Vector<Element, V>::Bits otherwise) {
  const auto* bits = reinterpret_cast<const typename Vector<Element, V>::Bits*>(p);
  return {load_if<kBeyond* static_cast<int>(sizeof(Element))>(wanted, bits, otherwise, policy)};
}

// The misaligned vector that begins `shift` elements into `low` and ends in `high`, the next aligned vector.
template <class Element, int V>
__device__ __forceinline__ Vector<Element, V> funnel(const Vector<Element, V>& low, const Vector<Element, V>& high, int shift) {
  constexpr int kWords = V * sizeof(Element) / 4;
  const int bytes = shift * static_cast<int>(sizeof(Element));
  uint32_t x[2 * kWords];
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    x[w] = low.word(w);
    x[w + kWords] = high.word(w);
  }
#pragma unroll
  for (int step = kWords / 2; step > 0; step /= 2) {
#pragma unroll
    for (int w = 0; w < kWords + step; ++w) x[w] = bytes & 4 * step ? x[w + step] : x[w];
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) x[w] = __funnelshift_r(x[w], x[w + 1], bytes % 4 * 8);
  Vector<Element, V> v;
  memcpy(&v, x, sizeof(v));
  return v;
}

// Applies f to each 32-bit word of its arguments.
template <class F, class T, class... More>
__device__ __forceinline__ T by_words(F f, T a, More... more) {
  struct Words { uint32_t word[sizeof(T) / 4]; };
  const auto words_of = [](const T& v) {
    Words x;
    memcpy(&x, &v, sizeof(T));
    return x;
  };
  Words x = words_of(a);
#pragma unroll
  for (size_t w = 0; w < sizeof(T) / 4; ++w) x.word[w] = f(x.word[w], words_of(more).word[w]...);
  memcpy(&a, &x, sizeof(T));
  return a;
}

// Selects word by word: to choose between two elements of an array, the compiler would put the array into local memory.
template <class T>
__device__ __forceinline__ T choose(bool first, T a, T b) {
  return by_words([first](uint32_t x, uint32_t y) { return first ? x : y; }, a, b);
}

// uint64 shares the kernels of int64: both add and multiply modulo 2^64.
template <class T>
using Compiled = std::conditional_t<std::is_same_v<T, uint64_t>, int64_t, T>;

}  // namespace gpureduce::cuda
