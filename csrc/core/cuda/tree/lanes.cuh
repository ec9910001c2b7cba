// Lanes: a thread adds the elements of neighbouring leaves. For example with V = 4 neighbours and vectors 1 2 3 4 and 5 6 7 8,
// the lanes of the thread are 1 + 5, 2 + 6, 3 + 7 and 4 + 8.
#pragma once

#include "../../numeric/indices.h"
#include "../load/source.cuh"

namespace gpureduce::cuda {

// The type of a lane's sum. Integers of 8 and 16 bits, and counts, are added in 32 bits within a warp's part of a tile: this is
// exact, and their order is free. The maximum of integers of up to 32 bits also takes 32 bits, and one with its index 64.
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
template <class In>
struct LaneOf<Ranked<In>, Indexed> {
  using type = Largest<int64_t>;
};
template <class Element, class Acc>
using Lane = typename LaneOf<Element, Acc>::type;

// Converts a lane's sum to the accumulator.
template <class Acc, class LaneSum>
__device__ __forceinline__ Acc widened(LaneSum x) {
  if constexpr (std::is_same_v<Acc, LaneSum>) return x;
  else if constexpr (std::is_same_v<Acc, Indexed>) return indices::unpacked(x);
  else if constexpr (kHolds<Acc>) return {number(x)};
  else return static_cast<Acc>(x);
}

// The addends of a whole vector. Two float8 share one conversion instruction.
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

// True if elements are bytes and the non-zero ones are counted.
template <class Element>
constexpr bool kCountsBytes = std::is_same_v<Element, Boolean> || std::is_same_v<Element, Mapped<uint8_t, Map::nonzero>>;

// Adds four bytes to a sum with one byte dot product.
template <class Element>
__device__ __forceinline__ int32_t add_bytes(uint32_t bytes, int32_t sum) {
  if constexpr (std::is_same_v<Element, int8_t>) {
    return __dp4a(static_cast<int32_t>(bytes), 0x01010101, sum);
  } else {
    if constexpr (kCountsBytes<Element>)  // non-zero bytes become 1: adding 0x7f carries into the top bit
      bytes = ((((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes) & 0x80808080u) >> 7;
    return static_cast<int32_t>(__dp4a(bytes, 0x01010101u, static_cast<uint32_t>(sum)));
  }
}

// Adds four words to four neighbouring sums: byte j of each word goes to sum j.
template <class Element>
__device__ __forceinline__ void add_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int32_t* sums) {
  const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);    // a0 b0 a1 b1, c0 d0 c1 d1
  const uint32_t ab2 = __byte_perm(a, b, 0x7362), cd2 = __byte_perm(c, d, 0x7362);  // a2 b2 a3 b3, c2 d2 c3 d3
  sums[0] = add_bytes<Element>(__byte_perm(ab, cd, 0x5410), sums[0]);
  sums[1] = add_bytes<Element>(__byte_perm(ab, cd, 0x7632), sums[1]);
  sums[2] = add_bytes<Element>(__byte_perm(ab2, cd2, 0x5410), sums[2]);
  sums[3] = add_bytes<Element>(__byte_perm(ab2, cd2, 0x7632), sums[3]);
}

// The sums of V neighbouring lanes in one thread. It takes elements as they were loaded, or addends that are already converted
// (load/converted.cuh).
template <class Element, class Acc, int V>
struct Lanes {
  using LaneSum = Lane<Element, Acc>;
  static constexpr bool kOrderFree = std::is_integral_v<LaneSum>;
  LaneSum sum[V];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = padding<LaneSum>();
  }
  template <class Loaded>
  __device__ __forceinline__ void start(const Vector<Loaded, V>& x) {
    unpack(x, sum);
  }
  template <class Loaded>
  __device__ __forceinline__ void add(const Vector<Loaded, V>& x) {
    LaneSum more[V];
    unpack(x, more);
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = sum[j] + more[j];
  }
  // Starts with N elements per lane, added in order.
  template <class Loaded, int N>
  __device__ __forceinline__ void start(const Vector<Loaded, V> (&x)[N]) {
    if constexpr (kOrderFree) {
      clear();
      add(x);
    } else {
      start(x[0]);
#pragma unroll
      for (int i = 1; i < N; ++i) add(x[i]);
    }
  }
  // Adds N more elements per lane, whose order is free. Bytes are added four vectors at a time.
  template <class Loaded, int N>
  __device__ __forceinline__ void add(const Vector<Loaded, V> (&x)[N]) {
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
  // Joins the V lanes, nearest neighbours first.
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

// True if elements of 16 bits are counted: the two halves of a word hold two counts.
template <class Element>
constexpr bool kCountsPairs = std::is_same_v<Element, Mapped<uint16_t, Map::nonzero>>;

// Small integers, whose order is free: all elements of a word are added into one sum.
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

// Lane sums in shared memory, swizzled: the index of a 16-byte granule is XORed with the number of its line. So threads that
// write V neighbouring sums each, or read sums far apart, have few bank conflicts.
template <class LaneSum>
struct LaneSums {
  static constexpr int kInGranule = kGranule / sizeof(LaneSum), kInLine = kLine / sizeof(LaneSum);
  LaneSum* memory;  // aligned to a line

  __device__ __forceinline__ LaneSum& operator[](uint32_t index) const {
    return memory[index ^ (index / kInLine % (kLine / kGranule) * kInGranule)];
  }

  // Stores V sums from `index` on, which is a multiple of V.
  template <int V>
  __device__ __forceinline__ void put(uint32_t index, const LaneSum (&sums)[V]) const {
    store_granules([&](int g) { return &(*this)[index + g]; }, sums);
  }
};

}  // namespace gpureduce::cuda
