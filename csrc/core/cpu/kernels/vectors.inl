// Elements and vectors: turns an element into an addend; loads a vector of lanes, widens it, and pads missing elements.

// Negation in the element's own type, as in a lazily negated view.
inline float negated(float x) { return -x; }
inline double negated(double x) { return -x; }
inline Half negated(Half x) { return {static_cast<uint16_t>(x.bits ^ 0x8000)}; }
inline BFloat16 negated(BFloat16 x) { return {static_cast<uint16_t>(x.bits ^ 0x8000)}; }
inline Float8_e4m3fn negated(Float8_e4m3fn x) { return {static_cast<uint8_t>(x.bits ^ 0x80)}; }
inline Float8_e5m2 negated(Float8_e5m2 x) { return {static_cast<uint8_t>(x.bits ^ 0x80)}; }
inline Boolean negated(Boolean x) { return x; }  // torch has no negative of a bool
template <class T>
inline T negated(T x) {
  return static_cast<T>(0 - static_cast<uint64_t>(x));
}
template <class T>
inline Complex<T> negated(Complex<T> x) {  // only compared with zero, so the sign has no effect
  return x;
}

template <class Lane, Map kMap, class In>
inline Lane lane(In x) {
  if constexpr (kMap == Map::nonzero) return addend<Lane>(nonzero(x));
  else return mapped<kMap, Lane>(x);
}

// The type in which up to kExactDepth integers are added. It is twice as wide as they are, so that a vector holds many. Counts
// of elements of two or more bytes are as wide as the elements. Other addends may have any value, and take 64 bits.
template <class In, Map kMap>
struct ExactLane {
  static constexpr bool kSmall = (std::is_integral_v<In> && kMap == Map::value) || kMap == Map::nonzero;
  static constexpr int kSize = !kSmall ? 8 : kMap == Map::nonzero && sizeof(In) > 1 ? sizeof(In) : 2 * sizeof(In);
  using type = UnsignedOf<kSize>;
};

template <class T, int kSize>
struct VectorOf {
  typedef T type __attribute__((vector_size(kSize * sizeof(T))));
};
template <class Lane>
constexpr int kVector = GPUREDUCE_VECTOR_BYTES / sizeof(Lane);
template <class Lane>
using Vector = typename VectorOf<Lane, kVector<Lane>>::type;

// True if a vector of In becomes a vector of Lane in one or two instructions. Other elements are first converted to a buffer.
template <class Lane, class In>
constexpr bool kLoads =
    std::is_same_v<Lane, In> || (std::is_same_v<Lane, double> && std::is_same_v<In, float>) ||
    (std::is_integral_v<Lane> && std::is_integral_v<In> && 2 * sizeof(In) == sizeof(Lane)) ||
    (std::is_same_v<Lane, float> && (std::is_same_v<In, Half> || std::is_same_v<In, BFloat16>) && GPUREDUCE_VECTOR_BYTES > 16);

// As many elements as a vector of Lane has, as they lie in memory.
template <class In>
using Stored = std::conditional_t<std::is_same_v<In, Half> || std::is_same_v<In, BFloat16>, uint16_t, In>;
template <class Lane, class In>
using Narrow = typename VectorOf<Stored<In>, kVector<Lane>>::type;

template <class Lane, class In>
inline __attribute__((always_inline)) Vector<Lane> widened(Narrow<Lane, In> x) {
  if constexpr (std::is_same_v<Lane, In>) {
    return x;
#if GPUREDUCE_VECTOR_BYTES == 32
  } else if constexpr (std::is_same_v<In, BFloat16>) {
    return reinterpret_cast<Vector<Lane>>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(x)), 16));
  } else if constexpr (std::is_same_v<In, Half>) {
    return reinterpret_cast<Vector<Lane>>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(x)));
  } else if constexpr (std::is_same_v<In, float>) {  // some compilers emit three instructions for it
    return reinterpret_cast<Vector<Lane>>(_mm256_cvtps_pd(reinterpret_cast<__m128>(x)));
#elif GPUREDUCE_VECTOR_BYTES == 64
  } else if constexpr (std::is_same_v<In, BFloat16>) {
    const __m512i bits = _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(x));
    return reinterpret_cast<Vector<Lane>>(_mm512_maskz_slli_epi32(0xffff, bits, 16));
  } else if constexpr (std::is_same_v<In, Half>) {
    return reinterpret_cast<Vector<Lane>>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(x)));
  } else if constexpr (std::is_same_v<In, float>) {
    return reinterpret_cast<Vector<Lane>>(_mm512_maskz_cvtps_pd(0xff, reinterpret_cast<__m256>(x)));
#endif
  } else {
    return __builtin_convertvector(x, Vector<Lane>);
  }
}

template <class Lane, class In>
inline __attribute__((always_inline)) Vector<Lane> load(const In* x) {
  Narrow<Lane, In> v;
  memcpy(&v, x, sizeof(v));
  return widened<Lane, In>(v);
}

template <class Lane>
inline __attribute__((always_inline)) void store(Lane* out, Vector<Lane> v) {
  memcpy(out, &v, sizeof(v));
}

template <class Lane>
inline __attribute__((always_inline)) void pad(Lane* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = padding<Lane>();
}

template <class V, int... I>
inline __attribute__((always_inline)) V numbers(std::integer_sequence<int, I...>) {
  return V{I...};
}

// The signed integer as wide as T.
template <class T>
using Bit = std::make_signed_t<UnsignedOf<sizeof(T)>>;
// One such integer for each lane of a vector of Lane.
template <class Lane, class In = Lane>
using Bits = typename VectorOf<Bit<In>, kVector<Lane>>::type;

// Lane i of the result is lane kIndex[i] of a followed by b.
template <class Acc, int... kIndex>
inline __attribute__((always_inline)) Vector<Acc> select(Vector<Acc> a, Vector<Acc> b) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, kIndex...);
#else
  return __builtin_shuffle(a, b, Bits<Acc>{kIndex...});
#endif
}

// The padding, -0.0, as it lies in memory.
template <class In>
constexpr Stored<In> kNoElement = static_cast<Stored<In>>(std::is_floating_point_v<In> ? -0.0 : 0x8000);

template <class Lane, class In>
inline __attribute__((always_inline)) Narrow<Lane, In> none() {
  return kNoElement<In> - Narrow<Lane, In>{};
}

// A vector of elements: from `first` to `end` (exclusive) of x, the rest of `others`. Reads nothing else from x.
template <class Lane, class In>
inline __attribute__((always_inline)) Narrow<Lane, In> load_over(Narrow<Lane, In> others, const In* x, int64_t first,
                                                                 int64_t end) {
#if GPUREDUCE_VECTOR_BYTES == 64
  using Loaded = Narrow<Lane, In>;
  const uint32_t mask = ((1u << end) - 1) & ~((1u << first) - 1);
  if constexpr (sizeof(Loaded) == 64 && sizeof(In) == 4) {
    return reinterpret_cast<Loaded>(_mm512_mask_loadu_epi32(reinterpret_cast<__m512i>(others), mask, x));
  } else if constexpr (sizeof(Loaded) == 64) {
    return reinterpret_cast<Loaded>(_mm512_mask_loadu_epi64(reinterpret_cast<__m512i>(others), mask, x));
  } else if constexpr (sizeof(In) == 4) {
    return reinterpret_cast<Loaded>(_mm256_mask_loadu_epi32(reinterpret_cast<__m256i>(others), mask, x));
  } else {
    static_assert(sizeof(In) == 2);
    return reinterpret_cast<Loaded>(_mm256_mask_loadu_epi16(reinterpret_cast<__m256i>(others), mask, x));
  }
#elif GPUREDUCE_VECTOR_BYTES == 32
  if (first >= end) return others;
  constexpr int kSize = kVector<Lane>;
  using Loaded = Bits<Lane, In>;
  const Loaded number = numbers<Loaded>(std::make_integer_sequence<int, kSize>{});
  const Loaded mask = (number >= static_cast<Bit<In>>(first)) & (number < static_cast<Bit<In>>(end));
  Loaded v;
  if constexpr (sizeof(In) == 8) {
    v = reinterpret_cast<Loaded>(_mm256_maskload_epi64(reinterpret_cast<const long long*>(x), reinterpret_cast<__m256i>(mask)));
  } else if constexpr (sizeof(Loaded) == 32) {
    v = reinterpret_cast<Loaded>(_mm256_maskload_epi32(reinterpret_cast<const int*>(x), reinterpret_cast<__m256i>(mask)));
  } else if constexpr (sizeof(In) == 4) {
    v = reinterpret_cast<Loaded>(_mm_maskload_epi32(reinterpret_cast<const int*>(x), reinterpret_cast<__m128i>(mask)));
  } else {  // pairs by one masked load, then an element at each end
    using Twos = typename VectorOf<int32_t, kSize / 2>::type;
    const Twos two = 2 * numbers<Twos>(std::make_integer_sequence<int, kSize / 2>{});
    const Twos both = (two >= static_cast<int32_t>(first)) & (two < static_cast<int32_t>(end - 1));
    v = reinterpret_cast<Loaded>(_mm_maskload_epi32(reinterpret_cast<const int*>(x), reinterpret_cast<__m128i>(both)));
    const auto one = [&](int64_t i) __attribute__((always_inline)) {
      const Loaded here = number == static_cast<Bit<In>>(i);
      v = (v & ~here) | (static_cast<Bit<In>>(x[i].bits) & here);
    };
    one(first);
    one(end - 1);
  }
  return reinterpret_cast<Narrow<Lane, In>>((v & mask) | (reinterpret_cast<Loaded>(others) & ~mask));
#else
  Stored<In> elements[kVector<Lane>];
  memcpy(elements, &others, sizeof(others));
  const int64_t n = end - first;
  GPUREDUCE_UNROLL
  for (int k = kVector<Lane>; k > 0; k /= 2) {
    if ((n & k) == 0) continue;
    memcpy(elements + first, x + first, k * sizeof(In));
    first += k;
  }
  memcpy(&others, elements, sizeof(others));
  return others;
#endif
}

// The first n elements, at most a vector of Lane, then padding. Reads nothing else.
template <class Lane, class In>
inline __attribute__((always_inline)) Vector<Lane> load_first(const In* x, int64_t n) {
  if (n >= kVector<Lane>) return load<Lane>(x);
  return widened<Lane, In>(load_over<Lane>(none<Lane, In>(), x, 0, n < 0 ? 0 : n));
}
