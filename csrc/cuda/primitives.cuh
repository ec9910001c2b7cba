// What every kernel is made of: vector loads, lane sums, and the joins of threads, warps and blocks. All joins take nearest
// neighbours first, and a missing neighbour is padding<Acc>(), which changes no bit.
#pragma once

#include <type_traits>
#include <utility>

#include "../engine.h"
#include "../map.h"
#include "../plan/limits.h"
#include "masks.h"

namespace gpureduce::cuda {

// --- vectors --------------------------------------------------------------------------------------------------------------

template <int kBytes> struct Word;
template <> struct Word<1> { using type = uint8_t; };
template <> struct Word<2> { using type = uint16_t; };
template <> struct Word<4> { using type = uint32_t; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };

// V elements as one load brings them. They stay whole words until they are used: as single elements they would take a register
// each, bytes too.
template <class Element, int V>
struct Vector {
  using Bits = typename Word<sizeof(Element) * V>::type;
  Bits bits;

  __device__ __forceinline__ Element operator[](int j) const {
    if constexpr (sizeof(Element) == 2 && V > 1) {  // a shift, which the compiler merges with what follows
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

// What stands for an element that is not there, and changes no bit: -0.0 in its own format, 0 for integers; of factors 1; and
// of the larger of two, and of exponents, the lowest number.
template <class Element>
struct Padding {
  static __device__ __forceinline__ Element element() {
    if constexpr (IsComplex<Element>::value) {
      const auto half = Padding<decltype(Element::re)>::element();
      return {half, half};
    } else if constexpr (std::is_arithmetic_v<Element> || kHolds<Element> || IsLogSum<Element>::value) {
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
    else if constexpr (map == Map::exponent) return {element_of<In>(-INFINITY)};
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

// `x` where its elements are from `begin` to before `end`, and padding elsewhere. By masks of whole words.
template <class Element, int V>
__device__ __forceinline__ Vector<Element, V> keep(const Vector<Element, V>& x, int begin, int end) {
  // A word's bits from the given byte of the vector on.
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

// Of so many neighbouring values, those that are stored at once.
template <class T>
constexpr int granule_values(int count) {
  return count < static_cast<int>(kGranule / sizeof(T)) ? count : kGranule / sizeof(T);
}

// Stores values in whole granules: the one from value g on to at(g).
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

// How loads are spelt, with what the L2 is to do with the line (l2_policy() in launch.h). They are volatile, so that none comes
// before wait_for_previous_kernel(); and they are not .nc, which is for memory that nobody writes while the kernel runs: until
// that wait is over, the kernel before may still write it.
#if __CUDA_ARCH__ >= 800
#define GPUREDUCE_LOAD(type) "ld.global.L2::cache_hint." type
#define GPUREDUCE_POLICY(operand) ", %" #operand
#else
#define GPUREDUCE_LOAD(type) "ld.global." type
#define GPUREDUCE_POLICY(operand) ""
#endif

// Loads from `p`, or kBeyond bytes beyond it, if `wanted` is not 0, else gives `otherwise`. In assembly, because the compiler
// would put a conditional load next to its use, and the loads of a thread would no longer be in flight together.
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
#undef GPUREDUCE_LOAD
#undef GPUREDUCE_POLICY

// The bits of words that a mask keeps; of words by twos, with kPairs, in the second ones.
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

// The same of both words of a pair, and then some bits turned.
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

// The word `x` in every word of a load.
template <class Bits>
__device__ __forceinline__ Bits filled(const uint32_t (&x)[2]) {
  if constexpr (sizeof(Bits) <= 4) return static_cast<Bits>(x[0]);
  else if constexpr (sizeof(Bits) == 8) return {x[0], x[1]};
  else return {x[0], x[1], x[0], x[1]};
}

// f of the constants 0, 1, ...: what a load is beyond a place has to be one.
template <class F, int... i>
__device__ __forceinline__ void for_constants(std::integer_sequence<int, i...>, F f) {
  (f(std::integral_constant<int, i>{}), ...);
}

template <class Element, int V>
__device__ __forceinline__ Vector<Element, V> load_vector(const Element* p, uint64_t policy) {
  return {load_always(reinterpret_cast<const typename Vector<Element, V>::Bits*>(p), policy)};
}

// The same if it is wanted.
template <class Element, int V, int kBeyond = 0>
__device__ __forceinline__ Vector<Element, V> load_vector_if(uint32_t wanted, const Element* p, uint64_t policy,
                                                             typename Vector<Element, V>::Bits otherwise) {
  const auto* bits = reinterpret_cast<const typename Vector<Element, V>::Bits*>(p);
  return {load_if<kBeyond* static_cast<int>(sizeof(Element))>(wanted, bits, otherwise, policy)};
}

// f of each word of some values.
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

// By words: a conditional choice between two elements of an array would put the array into memory.
template <class T>
__device__ __forceinline__ T choose(bool first, T a, T b) {
  return by_words([first](uint32_t x, uint32_t y) { return first ? x : y; }, a, b);
}

// uint64 is added and multiplied modulo 2^64 as int64 is, so the two share their kernels.
template <class T>
using Compiled = std::conditional_t<std::is_same_v<T, uint64_t>, int64_t, T>;

// --- sources: where a kernel's elements come from --------------------------------------------------------------------------
//
// A source has a Place, which finds an element: an offset, or one in each of two inputs (nest.h). side(n) is the place n
// elements on, of elements side by side. of_outputs<N>(wanted, place) is the source of the elements of N neighbouring outputs,
// the first of which begins at `place`: itself, or one that holds what these elements have in common.

// Elements of the type the kernel is compiled for. Signs are left out of sums by a mask of the second words; other elements are
// masked as a whole, if at all. kSigned: elements come with their signs.
template <class In, bool kSigned = false>
struct Typed {
  using Element = In;
  using Place = int64_t;
  static constexpr int kRank = kFastRank;
  static constexpr bool kMasks = IsMasked<In>::value;
  static constexpr bool kDropsSigns = !kSigned && (std::is_same_v<In, float> || std::is_same_v<In, double> ||
                                                   std::is_same_v<In, Half> || std::is_same_v<In, BFloat16>);
  using Kept = std::conditional_t<kMasks, Masks, uint32_t>;  // all masks, or the bits of second words that are kept
  const In* base;
  uint64_t policy;
  Kept masks;

  static Typed of(const void* base, uint64_t policy, const Masks& masks) {
    if constexpr (kMasks) return {static_cast<const In*>(base), policy, masks};
    else return {static_cast<const In*>(base), policy, masks.keep[1]};
  }

  __device__ __forceinline__ int64_t side(int64_t n) const { return n; }
  template <int N>
  __device__ __forceinline__ const Typed& of_outputs(bool, int64_t) const {
    return *this;
  }

  // kBeyond: elements beyond `offset`, which cost no arithmetic.
  template <int V, int kBeyond = 0>
  __device__ __forceinline__ Vector<In, V> load(int64_t offset) const {
    return counted(load_vector<In, V>(base + offset + kBeyond, policy));
  }

  // Where it is not wanted, its addends are padding.
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

  // For kernels that leave all signs out at once, if they are to: few sums want that.
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

  // Elements between the last aligned address and the one at `offset`.
  template <int V>
  __device__ __forceinline__ int misalignment(int64_t offset) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(base + offset) / sizeof(In) % V);
  }

  // The vector at `offset` where it is the input's, and padding elsewhere.
  template <int V>
  __device__ __forceinline__ Vector<In, V> load_inside(const InputSpan& input, int64_t offset) const {
    Vector<In, V> x;
#pragma unroll
    for (int j = 0; j < V; ++j) x.set(j, load_if<1>(inside(input, offset + j, offset + j + 1), offset + j)[0]);
    return x;
  }

  // Whether the elements from `begin` to before `end` are the input's, or at least between two that are.
  __device__ __forceinline__ bool inside(const InputSpan& input, int64_t begin, int64_t end) const {
    return address(begin) >= input.begin && address(end) <= input.end;
  }
};

// Whether elements are converted at run time (any.cuh); and whether there is one input of which a map makes the addends.
template <class Source>
constexpr bool is_any = false;
template <class Element>
constexpr bool has_one_input = true;
template <class Source>
constexpr Engine engine_of = is_any<Source>                              ? Engine::converted
                             : IsMapped<typename Source::Element>::value ? Engine::reduced
                                                                         : Engine::full;

// The vector at `offset`, or kBeyond elements beyond it: there as kWhole says, or else if `wanted`.
template <int V, bool kWhole, int kBeyond = 0, class Source>
__device__ __forceinline__ Vector<typename Source::Element, V> load_part(const Source& source, bool wanted,
                                                                         typename Source::Place at) {
  if constexpr (kWhole) return source.template load<V, kBeyond>(at);
  else return source.template load_if<V, kBeyond>(wanted, at);
}

// A unit's elements, of a row whose elements lie side by side: kCount groups of 32 * V neighbouring leaves, kElements of each
// leaf; the thread's first at `begin`. All in flight at once. kWhole: they are all there; or else those of the next `left`.
template <bool kWhole, int V, int kCount, int kElements, class Source>
__device__ __forceinline__ void load_unit(Vector<typename Source::Element, V> (&x)[kCount][kElements], const Source& source,
                                          typename Source::Place begin, int left) {
  for_constants(std::make_integer_sequence<int, kCount * kElements>{}, [&](auto i) {
    constexpr int g = decltype(i)::value / kElements, d = decltype(i)::value % kElements, kBeyond = g * kWarp * V + d * kLanes;
    x[g][d] = load_part<V, kWhole, kBeyond>(source, kBeyond + V <= left, begin);
  });
}

// --- lanes ----------------------------------------------------------------------------------------------------------------

// Integers of 8 and 16 bits are added in 32 bits as long as a warp's part of a tile lasts, and so are counts: exact, and
// order-free. The larger of integers of up to 32 bits has as many.
template <class Element, class Acc>
struct LaneOf {
  static constexpr bool kSmall = std::is_same_v<Element, Boolean> || (std::is_integral_v<Element> && sizeof(Element) <= 2);
  using type = std::conditional_t<kSmall, int32_t, Acc>;
};
template <class In, class Acc>
struct LaneOf<Mapped<In, Map::nonzero>, Acc> {
  using type = int32_t;
};
template <class In>
struct LaneOf<Ordered<In>, Largest<int64_t>> {
  using type = std::conditional_t<sizeof(In) <= 4, Largest<int32_t>, Largest<int64_t>>;
};
template <class Element, class Acc>
using Lane = typename LaneOf<Element, Acc>::type;

// A lane's sum as an accumulator.
template <class Acc, class LaneSum>
__device__ __forceinline__ Acc widened(LaneSum x) {
  if constexpr (std::is_same_v<Acc, LaneSum>) return x;
  else if constexpr (kHolds<Acc>) return {number(x)};
  else return static_cast<Acc>(x);
}

// Addends of a whole vector. Two float8 at a time share a conversion.
template <class T, class Element, int V>
__device__ __forceinline__ void unpack(const Vector<Element, V>& x, T (&to)[V]) {
  constexpr bool kE4m3 = std::is_same_v<Element, Mapped<Float8_e4m3fn, Map::value>>;
  constexpr bool kE5m2 = std::is_same_v<Element, Mapped<Float8_e5m2, Map::value>>;
  if constexpr ((kE4m3 || kE5m2) && V % 2 == 0) {
    constexpr auto kFormat = kE4m3 ? __NV_E4M3 : __NV_E5M2;
#pragma unroll
    for (int j = 0; j < V; j += 2) {
      const auto two = reinterpret_cast<const __nv_fp8x2_storage_t*>(&x.bits)[j / 2];
      const float2 wide = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, kFormat)));
      to[j] = wide.x;
      to[j + 1] = wide.y;
    }
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = addend<T>(x[j]);
  }
}

// Whether elements are bytes of which those that are not zero are counted.
template <class Element>
constexpr bool kCountsBytes = std::is_same_v<Element, Boolean> || std::is_same_v<Element, Mapped<uint8_t, Map::nonzero>>;

// Four bytes more in a sum, with the byte dot product.
template <class Element>
__device__ __forceinline__ int32_t add_bytes(uint32_t bytes, int32_t sum) {
  if constexpr (std::is_same_v<Element, int8_t>) {
    return __dp4a(static_cast<int32_t>(bytes), 0x01010101, sum);
  } else {
    if constexpr (kCountsBytes<Element>)  // each non-zero byte to 1: a carry into, or already, its top bit
      bytes = ((((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes) & 0x80808080u) >> 7;
    return static_cast<int32_t>(__dp4a(bytes, 0x01010101u, static_cast<uint32_t>(sum)));
  }
}

// The same for four neighbouring sums, each with one byte of each word.
template <class Element>
__device__ __forceinline__ void add_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int32_t* sums) {
  const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);    // a0 b0 a1 b1, c0 d0 c1 d1
  const uint32_t ab2 = __byte_perm(a, b, 0x7362), cd2 = __byte_perm(c, d, 0x7362);  // a2 b2 a3 b3, c2 d2 c3 d3
  sums[0] = add_bytes<Element>(__byte_perm(ab, cd, 0x5410), sums[0]);
  sums[1] = add_bytes<Element>(__byte_perm(ab, cd, 0x7632), sums[1]);
  sums[2] = add_bytes<Element>(__byte_perm(ab2, cd2, 0x5410), sums[2]);
  sums[3] = add_bytes<Element>(__byte_perm(ab2, cd2, 0x7632), sums[3]);
}

// The sums of V neighbouring lanes in one thread. Elements are as they were loaded, or already addends (any.cuh).
template <class Element, class Acc, int V>
struct Lanes {
  using LaneSum = Lane<Element, Acc>;
  static constexpr bool kOrderFree = std::is_integral_v<LaneSum>;
  LaneSum sum[V];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = padding<LaneSum>();
  }
  template <class Ready>
  __device__ __forceinline__ void start(const Vector<Ready, V>& x) {
    unpack(x, sum);
  }
  template <class Ready>
  __device__ __forceinline__ void add(const Vector<Ready, V>& x) {
    LaneSum more[V];
    unpack(x, more);
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = sum[j] + more[j];
  }
  // N elements a lane, the first of them first.
  template <class Ready, int N>
  __device__ __forceinline__ void start(const Vector<Ready, V> (&x)[N]) {
    if constexpr (kOrderFree) {
      clear();
      add(x);
    } else {
      start(x[0]);
#pragma unroll
      for (int i = 1; i < N; ++i) add(x[i]);
    }
  }
  // N more elements a lane, whose order is free. Bytes four vectors at a time.
  template <class Ready, int N>
  __device__ __forceinline__ void add(const Vector<Ready, V> (&x)[N]) {
    static_assert(kOrderFree);
    if constexpr (sizeof(Element) == 1 && V % 4 == 0 && N % 4 == 0) {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
#pragma unroll
        for (int w = 0; w < V / 4; ++w)
          add_bytes<Element>(x[i].word(w), x[i + 1].word(w), x[i + 2].word(w), x[i + 3].word(w), sum + 4 * w);
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) add(x[i]);
    }
  }
  template <class X>
  __device__ __forceinline__ void add(int j, X x) {
    sum[j] = sum[j] + addend<LaneSum>(x);
  }
  __device__ __forceinline__ void add(const Lanes& other) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = sum[j] + other.sum[j];
  }
  __device__ __forceinline__ Lanes operator+(const Lanes& right) const {
    Lanes sums = *this;
    sums.add(right);
    return sums;
  }
  // The join of the V lanes, nearest neighbours first.
  __device__ __forceinline__ Acc join() {
#pragma unroll
    for (int width = 1; width < V; width *= 2) {
#pragma unroll
      for (int j = 0; j + width < V; j += 2 * width) sum[j] = sum[j] + sum[j + width];
    }
    return widened<Acc>(sum[0]);
  }
};

// Joins neighbouring leaves of V columns.
template <class Sums, int kLeaves>
__device__ __forceinline__ Sums join_lanes(Sums (&leaves)[kLeaves]) {
#pragma unroll
  for (int width = 1; width < kLeaves; width *= 2) {
#pragma unroll
    for (int l = 0; l < kLeaves; l += 2 * width) leaves[l].add(leaves[l + width]);
  }
  return leaves[0];
}

// Counts of elements of 16 bits, which both halves of a word hold.
template <class Element>
constexpr bool kCountsPairs = std::is_same_v<Element, Mapped<uint16_t, Map::nonzero>>;

// Small elements, all of a word into one sum.
template <class Element, class Acc, int V>
struct WordLanes {
  static constexpr bool kOrderFree = true;
  static constexpr int kWords = V * sizeof(Element) / 4;
  int32_t sum;

  __device__ __forceinline__ void clear() { sum = 0; }
  __device__ __forceinline__ void start(const Vector<Element, V>& x) {
    sum = 0;
    add(x);
  }
  __device__ __forceinline__ void add(const Vector<Element, V>& x) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (kCountsPairs<Element>) sum += static_cast<int32_t>(__vminu2(x.word(w), 0x00010001u));
      else sum = add_bytes<Element>(x.word(w), sum);
    }
  }
  __device__ __forceinline__ void add(int, Element x) { sum += addend<int32_t>(x); }
  __device__ __forceinline__ Acc join() const {
    if constexpr (kCountsPairs<Element>) return (sum & 0xffff) + (sum >> 16 & 0xffff);
    else return sum;
  }
};

template <class Element, class Acc, int V>
struct RowLanesOf {
  static constexpr bool kBytes = sizeof(Element) == 1 && std::is_same_v<Lane<Element, Acc>, int32_t>;
  static constexpr bool kWords = V * sizeof(Element) % 4 == 0 && (kBytes || kCountsPairs<Element>);
  using type = std::conditional_t<kWords, WordLanes<Element, Acc, V>, Lanes<Element, Acc, V>>;
};
template <class Element, class Acc, int V>
using RowLanes = typename RowLanesOf<Element, Acc, V>::type;

// Lane sums in shared memory. The 16-byte granules of a line change places by the line's number, so that threads that write
// V neighbouring sums each, or read sums that lie far apart, seldom meet in a bank.
template <class LaneSum>
struct LaneSums {
  static constexpr int kInGranule = kGranule / sizeof(LaneSum), kInLine = kLine / sizeof(LaneSum);
  LaneSum* memory;  // at the begin of a line

  __device__ __forceinline__ LaneSum& operator[](uint32_t index) const {
    return memory[index ^ (index / kInLine % (kLine / kGranule) * kInGranule)];
  }

  // V of them from `index` on, a multiple of V.
  template <int V>
  __device__ __forceinline__ void put(uint32_t index, const LaneSum (&sums)[V]) const {
    store_granules([&](int g) { return &(*this)[index + g]; }, sums);
  }
};

// --- joins ----------------------------------------------------------------------------------------------------------------

// Joins kCount values of one thread, a power of two.
template <int kCount, class T>
__device__ __forceinline__ T join_neighbours(T (&v)[kCount]) {
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * step) v[i] = v[i] + v[i + step];
  }
  return v[0];
}

// Sums of columns side by side.
template <class Acc, int V>
struct Neighbours {
  Acc of[V];

  __device__ __forceinline__ Neighbours operator+(const Neighbours& right) const {
    Neighbours sums;
#pragma unroll
    for (int j = 0; j < V; ++j) sums.of[j] = of[j] + right.of[j];
    return sums;
  }
};

constexpr int kUnrolledLevels = 8;  // more stand in local memory, whose code is short

// Joins values that come one by one, as a binary counter counts: `v` is the value of this index, and then the sum of all that
// are complete with it. `waiting` has room for each bit of the index, or of all but the last of a power of two of them, which
// completes the sum of all.
template <int kLevels, class T, class Index>
__device__ __forceinline__ void carry(T (&waiting)[kLevels], T& v, Index index) {
  if constexpr (kLevels > kUnrolledLevels) {
    int level = 0;
#pragma unroll 1
    for (; index >> level & 1; ++level) v = waiting[level] + v;
    waiting[level] = v;
    return;
  }
  bool on = true;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if (on && (index >> level & 1)) {
      v = waiting[level] + v;
    } else if (on) {
      waiting[level] = v;
      on = false;
    }
  }
}

// Levels of `waiting` for a power of two of values.
constexpr int levels_of(int count) { return count < 4 ? 1 : 1 + levels_of(count / 2); }

// Joins neighbouring values that came one by one through carry(), `count` of them: fewer than a power of two. `none`: of
// none.
template <int kLevels, class T, class Index>
__device__ __forceinline__ T joined(T (&waiting)[kLevels], Index count, T none) {
  T v = none;
  bool any = false;
#pragma unroll kLevels> kUnrolledLevels ? 1 : kLevels
  for (int level = 0; level < kLevels; ++level) {
    if (!(count >> level & 1)) continue;
    v = any ? waiting[level] + v : waiting[level];
    any = true;
  }
  return v;
}

// `v` of another thread of the warp.
template <class T>
__device__ __forceinline__ T shuffle(T v, int lane) {
  return by_words([lane](uint32_t word) { return __shfl_sync(0xffffffffu, word, lane); }, v);
}

template <class T>
__device__ __forceinline__ T shuffle_xor(T v, int mask) {
  return by_words([mask](uint32_t word) { return __shfl_xor_sync(0xffffffffu, word, mask); }, v);
}

// Joins groups of threads of a warp: `from` neighbours already share a value, afterwards `to` do. Powers of two.
template <class Acc>
__device__ __forceinline__ Acc warp_join(Acc v, int from, int to) {
  for (int mask = from; mask < to; mask *= 2) v = v + shuffle_xor(v, mask);
  return v;
}

template <class Acc>
__device__ __forceinline__ Acc warp_join(Acc v) {
#pragma unroll
  for (int mask = 1; mask < kWarp; mask *= 2) v = v + shuffle_xor(v, mask);
  return v;
}

template <class T>
__device__ __forceinline__ void exchange_if(bool wanted, T& a, T& b) {
  const T first = choose(wanted, b, a);
  b = choose(wanted, a, b);
  a = first;
}

// Joins groups of kWidth neighbouring threads that hold kCount values each (up to kWidth): every value across its group. While
// there are several values, a pair of threads shares the work: each keeps one half of them and hands the other half over. Then
// the first thread of a group has its value 0, the next its value 1, and so on, again after kCount.
template <int kCount, int kWidth = kWarp, int kMask = 1, class Acc>
__device__ __forceinline__ Acc warp_transpose_join(const Acc (&v)[kCount]) {
  if constexpr (kCount == 1) {
    return warp_join(v[0], kMask, kWidth);
  } else {
    const bool odd = threadIdx.x & kMask;
    Acc half[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      Acc keep = v[2 * i], give = v[2 * i + 1];
      exchange_if(odd, keep, give);
      half[i] = keep + shuffle_xor(give, kMask);
    }
    return warp_transpose_join<kCount / 2, kWidth, 2 * kMask>(half);
  }
}

// Joins kCount values a thread: each across the warp, then the kCount results.
template <int kCount, class Acc>
__device__ __forceinline__ Acc warp_join_groups(const Acc (&v)[kCount]) {
  return warp_join(warp_transpose_join(v), 1, kCount);
}

// Joins groups of `width` neighbouring threads of the block (a power of two); the first thread of each group gets the group's
// value. `slots` holds one value a warp. Every thread of the block must call it, and may use `slots` again after the next
// __syncthreads().
template <class Acc>
__device__ __forceinline__ bool block_join(Acc& v, int width, Acc* slots) {
  const int thread = threadIdx.x;
  const bool first = (thread & (width - 1)) == 0;
  v = warp_join(v, 1, width < kWarp ? width : kWarp);
  if (width <= kWarp) return first;
  if (thread % kWarp == 0) slots[thread / kWarp] = v;
  __syncthreads();
  const int warps = width / kWarp, lane = thread % kWarp;  // every warp joins those of its group
  v = lane < warps ? slots[(thread / kWarp & -warps) + lane] : padding<Acc>();
  v = warp_join(v, 1, warps);
  return first;
}

// --- launching ------------------------------------------------------------------------------------------------------------

// Lets the next kernel of the stream, if it asks for it, start while this one runs; and waits for the one before.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

}  // namespace gpureduce::cuda
