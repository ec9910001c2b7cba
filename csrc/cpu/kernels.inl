// The kernels of one instruction set, in namespace GPUREDUCE_ISA: plain loops for the compiler to vectorise. They come at the
// end of a source file, after a pragma that switches the instruction set on for all that follows. Nothing here may therefore
// be shared with other files: no std::, only always-inline functions from the headers, the rest in an unnamed namespace.

#ifdef __clang__
#pragma clang fp contract(off)  // nothing here multiplies and adds, so no other compiler can fuse anything either
#define GPUREDUCE_UNROLL _Pragma("unroll")
#else
#define GPUREDUCE_UNROLL _Pragma("GCC unroll 32")
#endif

namespace gpureduce::cpu::GPUREDUCE_ISA {
namespace {

constexpr int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- elements -------------------------------------------------------------------------------------------------------------

// Negation in the element's own type, as a lazily negated view means it.
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
inline Complex<T> negated(Complex<T> x) {
  return x;
}  // comes here only to be compared with zero

template <class Lane, Conversion kConversion, class In>
inline Lane lane(In x) {
  if constexpr (kConversion == Conversion::nonzero) return static_cast<Lane>(nonzero(x));
  else return addend<Lane>(x);
}

// What integers are added in, up to kExactDepth of them: twice as wide as they are, so that a vector holds many.
template <class In, Conversion kConversion>
struct ExactLane {
  static constexpr bool kSmall = std::is_integral_v<In> || std::is_same_v<In, Boolean> || kConversion == Conversion::nonzero;
  static constexpr int kSize = !kSmall ? 8 : kConversion == Conversion::nonzero && sizeof(In) > 1 ? sizeof(In) : 2 * sizeof(In);
  using type = std::conditional_t<kSize == 2, uint16_t, std::conditional_t<kSize == 4, uint32_t, uint64_t>>;
};

// --- vectors ----------------------------------------------------------------------------------------------------------------

template <class T, int kSize>
struct VectorOf {
  typedef T type __attribute__((vector_size(kSize * sizeof(T))));
};
template <class Lane>
constexpr int kVector = GPUREDUCE_VECTOR_BYTES / sizeof(Lane);
template <class Lane>
using Vector = typename VectorOf<Lane, kVector<Lane>>::type;

// Whether a vector of In becomes a vector of Lane in one or two instructions; all else is converted to a buffer first.
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
  } else if constexpr (std::is_same_v<In, float>) {  // for which some compilers take three instructions
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

template <class V, int... I>
inline __attribute__((always_inline)) V numbers(std::integer_sequence<int, I...>) {
  return V{I...};
}

// Integers as wide as T.
template <class T>
using Bit = std::conditional_t<sizeof(T) == 2, int16_t, std::conditional_t<sizeof(T) == 4, int32_t, int64_t>>;
// As many as a vector of Lane has.
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

// Joins neighbours: lane p * kWidth + w of the result is lane 2p * kWidth + w of a followed by b plus the one kWidth on.
template <int kWidth, class Acc, int... I>
inline __attribute__((always_inline)) Vector<Acc> join_two(Vector<Acc> a, Vector<Acc> b, std::integer_sequence<int, I...>) {
  return select<Acc, (I / kWidth * 2 * kWidth + I % kWidth)...>(a, b) +
         select<Acc, (I / kWidth * 2 * kWidth + kWidth + I % kWidth)...>(a, b);
}

template <int kWidth, class Acc>
inline __attribute__((always_inline)) Vector<Acc> join_four_of(Vector<Acc> a, Vector<Acc> b, Vector<Acc> c, Vector<Acc> d) {
  constexpr std::make_integer_sequence<int, kVector<Acc>> lanes{};
  return join_two<kWidth, Acc>(join_two<kWidth, Acc>(a, b, lanes), join_two<kWidth, Acc>(c, d, lanes), lanes);
}

template <class V>
inline __attribute__((always_inline)) V join_four(V a, V b, V c, V d, int64_t width) {
  using Acc = std::remove_cv_t<std::remove_reference_t<decltype(a[0])>>;
  return width == 1 ? join_four_of<1, Acc>(a, b, c, d) : join_four_of<2, Acc>(a, b, c, d);
}

// Joins neighbours, kUnit lanes each and a multiple of eight bytes: those of a to the even units of the result, those of b to
// the odd ones. That is one shuffle, of which most processors do one a cycle, and a blend.
template <int kUnit, class Acc, int... I>
inline __attribute__((always_inline)) Vector<Acc> join_units(Vector<Acc> a, Vector<Acc> b, std::integer_sequence<int, I...>) {
  constexpr int kPairs = kUnit * sizeof(Acc) / 8, kAll = kVector<double>;
  const auto x = reinterpret_cast<Vector<double>>(a), y = reinterpret_cast<Vector<double>>(b);
#if GPUREDUCE_VECTOR_BYTES == 64
  const auto straight = reinterpret_cast<Vector<double>>(_mm512_mask_mov_pd(x, ((I / kPairs % 2 << I) | ...), y));
#else
  const auto straight = select<double, (I / kPairs % 2 * kAll + I)...>(x, y);
#endif
  const auto crossed = select<double, (I / kPairs % 2 ? kAll + I - kPairs : I + kPairs)...>(x, y);
  return reinterpret_cast<Vector<Acc>>(straight) + reinterpret_cast<Vector<Acc>>(crossed);
}

// The same for lanes of four bytes, in runs of four: first those of a, then those of b.
template <class Acc, int... I>
inline __attribute__((always_inline)) Vector<Acc> join_lanes(Vector<Acc> a, Vector<Acc> b, std::integer_sequence<int, I...>) {
  constexpr auto from = [](int i) { return i % 4 / 2 * kVector<Acc> + i / 4 * 4 + i % 2 * 2; };
  return select<Acc, from(I)...>(a, b) + select<Acc, (from(I) + 1)...>(a, b);
}

// Joins the leaves of kVector / kWidth vectors to as many, in order: each is the sum of so many neighbours.
template <int kWidth, class Acc, int kCount = kVector<Acc> / kWidth>
inline __attribute__((always_inline)) Vector<Acc> join_vectors(const Vector<Acc>* v) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    constexpr int kUnit = kCount / 2 * kWidth;
    const Vector<Acc> a = join_vectors<kWidth, Acc, kCount / 2>(v), b = join_vectors<kWidth, Acc, kCount / 2>(v + kCount / 2);
    // Twice within a run, lanes of four bytes come to where two joins of units would bring them.
    if constexpr (kWidth * sizeof(Acc) < 8 && kCount <= 4)
      return join_lanes<Acc>(a, b, std::make_integer_sequence<int, kVector<Acc>>{});
    else return join_units<kUnit, Acc>(a, b, std::make_integer_sequence<int, kVector<double>>{});
  }
}

// The same for kCount vectors; returns the end of what it wrote.
template <int kCount, class Acc>
inline __attribute__((always_inline)) Acc* join_block(Acc* out, const Vector<Acc>* v, int64_t width) {
  constexpr int kOne = kVector<Acc>, kTwo = kOne / 2;
  if (width == 1) {
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; i += kOne, out += kOne) store(out, join_vectors<1, Acc>(v + i));
  } else {
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; i += kTwo, out += kOne) store(out, join_vectors<2, Acc>(v + i));
  }
  return out;
}

// --- gathering --------------------------------------------------------------------------------------------------------------

template <int kSize>
inline __attribute__((always_inline)) bool copy_by(char* to, const char* from, int64_t size) {
  if (size < kSize || kSize > GPUREDUCE_VECTOR_BYTES) return false;
  typedef char Bytes __attribute__((vector_size(kSize)));
  const auto move = [=](int64_t at) __attribute__((always_inline)) {
    Bytes bytes;
    memcpy(&bytes, from + at, kSize);
    memcpy(to + at, &bytes, kSize);
  };
  move(0);  // the ends overlap what is in between, which is whole lines of the cache
  for (int64_t i = kSize - reinterpret_cast<uintptr_t>(to) % kSize; i + kSize <= size; i += kSize) move(i);
  move(size - kSize);
  return true;
}

// memcpy for the short runs that it is slow for.
inline void copy(void* to, const void* from, int64_t size) {
  char* t = static_cast<char*>(to);
  const char* f = static_cast<const char*>(from);
  copy_by<64>(t, f, size) || copy_by<32>(t, f, size) || copy_by<16>(t, f, size) || copy_by<8>(t, f, size) ||
      copy_by<4>(t, f, size) || copy_by<2>(t, f, size) || copy_by<1>(t, f, size);
}

// -0.0, as it lies in memory: what stands for no element.
template <class In>
constexpr Stored<In> kNoElement = static_cast<Stored<In>>(std::is_floating_point_v<In> ? -0.0 : 0x8000);

template <class Lane, class In>
inline __attribute__((always_inline)) Narrow<Lane, In> none() {
  return kNoElement<In> - Narrow<Lane, In>{};
}

// Of as many elements as a vector of Lane has, those from `first` on and before `end`, and of `others` the rest. No others are
// read.
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
  } else {  // by twos, and one at either end
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

// The first n elements, or as many as a vector of Lane has, and then padding. No others are read.
template <class Lane, class In>
inline __attribute__((always_inline)) Vector<Lane> load_first(const In* x, int64_t n) {
  if (n >= kVector<Lane>) return load<Lane>(x);
  return widened<Lane, In>(load_over<Lane>(none<Lane, In>(), x, 0, n < 0 ? 0 : n));
}

// to[i] = x[i * stride] as an addend
template <Conversion C, class Lane, class In>
void convert(Lane* __restrict to, const In* __restrict x, int64_t n, int64_t stride) {
  int64_t i = 0;
  if (stride == 1) {
#if GPUREDUCE_VECTOR_BYTES >= 32
    if constexpr (std::is_same_v<In, Half> && std::is_same_v<Lane, float>) {
      for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
    }
#endif
    for (; i < n; ++i) to[i] = lane<Lane, C>(x[i]);
  } else if (stride == 2) {
    for (; i < n; ++i) to[i] = lane<Lane, C>(x[2 * i]);
  } else {
    for (; i < n; ++i) to[i] = lane<Lane, C>(x[i * stride]);
  }
}

// The same for a lazily negated or conjugated view.
template <Conversion C, class Lane, class In>
void convert_signed(Lane* to, const In* x, int64_t n, int64_t stride, bool negate, bool conjugate) {
  for (int64_t i = 0; i < n; ++i) {
    In element = x[i * stride];
    to[i] = lane<Lane, C>(negate != (conjugate && i % 2) ? negated(element) : element);
  }
}

// The elements of `width` neighbouring columns, as they lie in memory, and as lanes.
template <Conversion C, class Lane, class In>
struct Source {
  // 64-bit integers are all the same to a sum modulo 2^64.
  using Direct = std::conditional_t<std::is_integral_v<In> && std::is_integral_v<Lane> && sizeof(In) == sizeof(Lane), Lane, In>;
  static constexpr bool kSame = C == Conversion::value && std::is_same_v<Direct, Lane>;
  static constexpr bool kDirect = C == Conversion::value && kLoads<Lane, Direct>;

  Source(const Plan& plan, const Task& task)
      : problem(plan.problem),
        input(static_cast<const In*>(problem.input) + task.first_column * problem.column_stride),
        width(task.width),
        stride(width == 1 ? problem.reduced.fastest().stride : problem.column_stride),
        pitch(problem.reduced.fastest().stride),
        block(width == 1 || (stride == 1 && pitch == width)),
        in_place(kDirect && stride == 1 && !problem.negate && !problem.conjugate),
        abreast(plan.tile.abreast && in_place && block && problem.reduced.fastest().size * width >= kVector<Lane>) {}

  // What the lanes read where it is.
  using Loaded = std::conditional_t<kDirect, Direct, Lane>;
  const Loaded* at(int64_t offset) const { return reinterpret_cast<const Loaded*>(input + offset); }

  // Writes n elements of each column to to[n][width].
  void gather(Lane* to, int64_t row, int64_t first, int64_t n) const {
    const Dims& dims = problem.reduced;
    const int64_t piece = dims.fastest().size;
    for (Cursor at(dims, first); n > 0;) {
      const In* from = input + row + at.offset();
      const int64_t pieces = dims.rank > 1 && n >= piece ? min(n / piece, at.whole()) : 0;
      if (pieces > 0) {
        for (int64_t i = 0; i < pieces; ++i, to += piece * width, from += dims.dims[dims.rank - 2].stride)
          gather_piece(to, from, piece);
        at.advance_whole(pieces);
        n -= pieces * piece;
      } else {
        const int64_t run = min(n, at.left());
        gather_piece(to, from, run);
        at.advance(run);
        to += run * width;
        n -= run;
      }
    }
  }

  // The same for elements begin + i + d * step, to to[d][i][width] for i < lanes and d < depth; those from `end` on are
  // padding.
  void gather_lanes(Lane* to, int64_t row, int64_t begin, int64_t lanes, int64_t step, int64_t depth, int64_t end) const {
    const int64_t together = lanes == step ? depth : 1;  // neighbouring rows of lanes
    for (int64_t d = 0; d < depth; d += together, begin += together * step) {
      const int64_t n = min(together * lanes, end - begin), all = together * lanes * width;
      gather(to, row, begin, n);
      for (int64_t i = n * width; i < all; ++i) to[i] = padding<Lane>();
      to += all;
    }
  }

  // n elements of the fastest dim.
  void gather_piece(Lane* to, const In* from, int64_t n) const {
    const int64_t calls = block ? 1 : n, size = block ? n * width : width;
    for (int64_t i = 0; i < calls; ++i, to += size, from += pitch) {
      if (problem.negate || problem.conjugate) convert_signed<C>(to, from, size, stride, problem.negate, problem.conjugate);
      else if (kSame && stride == 1) copy(to, from, size * sizeof(In));
      else convert<C>(to, from, size, stride);
    }
  }

  const CpuProblem& problem;
  const In* const input;
  const int64_t width, stride;  // of neighbours in the tile
  const int64_t pitch;          // from one element of a column to the next
  const bool block;             // one stride walks all columns of all elements of the fastest dim
  const bool in_place;          // neighbours can be summed where they are
  const bool abreast;           // Tile::abreast, if pieces are worth it: at least a vector
};

// --- leaves of columns ------------------------------------------------------------------------------------------------------

// v = the sums of kLeaves neighbouring leaves, up to eight, `pitch` from one to the next, of kCount vectors of columns;
// elements of a leaf are `step` apart.
template <int kLeaves, int kCount, class Lane, class In>
inline __attribute__((always_inline)) void sum_leaves(Vector<Lane>* v, const In* x, int64_t pitch, int64_t step,
                                                      int64_t depth) {
  if constexpr (kLeaves == 1) {
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) v[i] = load<Lane>(x + i * kVector<Lane>);
    for (int64_t d = 1; d < depth; ++d) {
      x += step;
      GPUREDUCE_UNROLL
      for (int i = 0; i < kCount; ++i) v[i] += load<Lane>(x + i * kVector<Lane>);
    }
  } else {
    constexpr int kLeft = kLeaves > 4 ? 4 : kLeaves > 2 ? 2 : 1;  // the power of two below
    Vector<Lane> right[kCount];
    sum_leaves<kLeft, kCount, Lane>(v, x, pitch, step, depth);
    sum_leaves<kLeaves - kLeft, kCount, Lane>(right, x + kLeft * pitch, pitch, step, depth);
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) v[i] += right[i];
  }
}

// Of `width` columns, those from `first` on that kCount vectors hold, and as many more; returns the first one left.
template <int kLeaves, int kCount, class Lane, class In>
inline __attribute__((always_inline)) int64_t join_some(Lane* __restrict out, const In* __restrict x, int64_t first,
                                                        int64_t width, int64_t pitch, int64_t step, int64_t depth) {
  constexpr int kSize = kVector<Lane>;
  for (; first + kCount * kSize <= width; first += kCount * kSize) {
    Vector<Lane> v[kCount];
    sum_leaves<kLeaves, kCount, Lane>(v, x + first, pitch, step, depth);
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) store(out + first + i * kSize, v[i]);
  }
  return first;
}

// All of them in runs of so many vectors, the last vector over the one before; returns the first one left of less than a
// vector.
template <int kLeaves, int... kCounts, class Lane, class In>
inline __attribute__((always_inline)) int64_t join_all(Lane* __restrict out, const In* __restrict x, int64_t width,
                                                       int64_t pitch, int64_t step, int64_t depth) {
  int64_t done = 0;
  ((done = join_some<kLeaves, kCounts>(out, x, done, width, pitch, step, depth)), ...);
  const int64_t last = width - kVector<Lane>;
  return done < width && last >= 0 ? join_some<kLeaves, 1>(out, x, last, width, pitch, step, depth) : done;
}

// Rows, of an element a leaf each, that are joined in registers, and twice so. One thread: (200, 20, 64) dim 1 float32 12.1 us,
// and 33.4 by way of a tile. (Three times: (128, 1000) with two threads 11.8 us, and 9.4.)
constexpr int kThin = 8;
constexpr int64_t kShort = kThin * kThin;

// Sums `length` rows, up to kThin, of `width` columns, a vector or more.
template <int kLength = kThin, class Lane, class In>
void sum_thin(Lane* __restrict out, const In* __restrict x, int64_t length, int64_t width, int64_t pitch) {
  if constexpr (kLength > 1)
    if (length < kLength) return sum_thin<kLength - 1>(out, x, length, width, pitch);
  join_all<kLength, 2, 1>(out, x, width, pitch, 0, 1);
}

// Up to kShort rows, eight by eight, in strips of as many columns as leave the sums of eight in a tile.
template <class Lane, class In>
void sum_short(Lane* __restrict out, Lane* __restrict eights, const In* __restrict x, int64_t length, int64_t width,
               int64_t pitch) {
  if (length <= kThin) return sum_thin(out, x, length, width, pitch);
  const int64_t count = ceil_div(length, kThin), most = kTileBytes / (count * sizeof(Lane));
  for (int64_t done = 0; done < width;) {
    const int64_t first = min(done, width - kVector<Lane>), strip = min(most, width - first);
    for (int64_t i = 0; i < count; ++i)
      sum_thin(eights + i * strip, x + first + i * kThin * pitch, min(kThin, length - i * kThin), strip, pitch);
    sum_thin(out + first, eights, count, strip, strip);
    done = first + strip;
  }
}

// Sums `leaves` leaves of `width` columns and joins four neighbours each while they are in registers: where a leaf has few
// elements, to write it and read it again takes as long as to sum it.
template <class Lane, class In>
void join_columns(Lane* __restrict out, const In* __restrict x, int64_t leaves, int64_t width, int64_t pitch, int64_t step,
                  int64_t depth) {
  for (int64_t l = 0; l < leaves; l += 4, x += 4 * pitch, out += width) {
    for (int64_t done = join_all<4, 8, 4, 1>(out, x, width, pitch, step, depth); done < width; ++done) {
      const auto leaf = [&](int i) __attribute__((always_inline)) {
        Lane v = lane<Lane, Conversion::value>(x[i * pitch + done]);
        for (int64_t d = 1; d < depth; ++d) v += lane<Lane, Conversion::value>(x[i * pitch + done + d * step]);
        return v;
      };
      const Lane left = leaf(0) + leaf(1), right = leaf(2) + leaf(3);
      out[done] = left + right;
    }
  }
}

// --- joining ----------------------------------------------------------------------------------------------------------------

// out[p][width] = in[2p][width] + in[2p + 1][width]
template <class Acc>
void join_pairs(Acc* __restrict out, const Acc* __restrict in, int64_t pairs, int64_t width) {
  constexpr int kSize = kVector<Acc>;
  constexpr std::make_integer_sequence<int, kSize> lanes{};
  // Vectors hold several pairs of one or two columns, which the compiler does not see.
  for (; width <= 2 && pairs * width >= kSize; pairs -= kSize / width, in += 2 * kSize, out += kSize) {
    const Vector<Acc> a = load<Acc>(in), b = load<Acc>(in + kSize);
    store(out, width == 1 ? join_two<1, Acc>(a, b, lanes) : join_two<2, Acc>(a, b, lanes));
  }
  for (int64_t p = 0; p < pairs; ++p, in += 2 * width, out += width) {
    for (int64_t w = 0; w < width; ++w) out[w] = in[w] + in[width + w];
  }
}

// Two levels at once for one or two columns, which vectors hold several pairs of.
template <class Acc>
void join_fours(Acc* __restrict out, const Acc* __restrict in, int64_t n, int64_t width) {
  constexpr int kSize = kVector<Acc>;
  for (; n >= 4 * kSize; n -= 4 * kSize, in += 4 * kSize, out += kSize)
    store(out, join_four(load<Acc>(in), load<Acc>(in + kSize), load<Acc>(in + 2 * kSize), load<Acc>(in + 3 * kSize), width));
  for (; n > 0; n -= 4 * width, in += 3 * width) {
    for (int64_t w = 0; w < width; ++w, ++in, ++out) *out = (in[0] + in[width]) + (in[2 * width] + in[3 * width]);
  }
}

// All of a vector's leaves at once, of n lanes in all. Behind what is joined some more lanes of `out` are written.
template <int kWidth, class Acc>
void join_whole(Acc* __restrict out, const Acc* __restrict in, int64_t n) {
  constexpr int kSize = kVector<Acc>, kCount = kSize / kWidth;
  for (; n > 0; n -= kCount * kSize, in += kCount * kSize, out += kSize) {
    Vector<Acc> v[kCount];
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) v[i] = i == 0 || i * kSize < n ? load<Acc>(in + i * kSize) : v[0];
    store(out, join_vectors<kWidth, Acc>(v));
  }
}

// Joins tile[rows][leaves][width] to one leaf a row, back and forth between two buffers; returns the one it ended in.
template <class Acc>
Acc* join_tile(Acc* tile, Acc* other, int64_t rows, int64_t leaves, int64_t width) {
  const int64_t whole = kVector<Acc> / width;
  for (int64_t left; leaves > 1; leaves = left) {
    const int64_t n = rows * leaves * width;
    if (width <= 2 && leaves >= whole && whole >= 4) {
      width == 1 ? join_whole<1>(other, tile, n) : join_whole<2>(other, tile, n);
      left = leaves / whole;
    } else if (width <= 2 && leaves >= 4) {
      join_fours(other, tile, n, width);
      left = leaves / 4;
    } else if (leaves >= 4 && width >= kVector<Acc>) {
      join_columns(other, tile, rows * leaves, width, width, 0, 1);
      left = leaves / 4;
    } else {
      join_pairs(other, tile, rows * leaves / 2, width);
      left = leaves / 2;
    }
    Acc* joined = other;
    other = tile;
    tile = joined;
  }
  return tile;
}

// right[i] = left[i] + right[i]
template <class Acc>
void join_left(Acc* __restrict right, const Acc* __restrict left, int64_t n) {
  for (int64_t i = 0; i < n; ++i) right[i] = left[i] + right[i];
}

// --- the lanes --------------------------------------------------------------------------------------------------------------

// The lanes of kCount vectors, which stay in registers: lane i is x[i] + x[i + step] + ..., `depth` of them, left to right.
// Returns the end of what it wrote.
template <int kCount, class Lane, class In>
inline __attribute__((always_inline)) Lane* sum_block(Lane* __restrict out, const In* __restrict x, int64_t step, int64_t depth,
                                                      int fours) {
  constexpr int kSize = kVector<Lane>;
  Vector<Lane> v[kCount];
  GPUREDUCE_UNROLL
  for (int i = 0; i < kCount; ++i) v[i] = load<Lane>(x + i * kSize);
  for (int64_t d = 1; d < depth; ++d) {
    x += step;
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) v[i] += load<Lane>(x + i * kSize);
  }
  if constexpr (!std::is_integral_v<Lane>) {
    if (fours != 0) {
      GPUREDUCE_UNROLL
      for (int i = 0; i < kCount; i += 4) store(out + i / 4 * kSize, join_four(v[i], v[i + 1], v[i + 2], v[i + 3], fours));
      return out + kCount / 4 * kSize;
    }
  }
  GPUREDUCE_UNROLL
  for (int i = 0; i < kCount; ++i) store(out + i * kSize, v[i]);
  return out + kCount * kSize;
}

// Writes the sums of n such lanes. With `fours` (a width of 1 or 2), four neighbouring lanes each are joined while they are in
// registers.
template <class Lane, class In>
void sum_lanes(Lane* __restrict out, const In* __restrict x, int64_t n, int64_t step, int64_t depth, int fours) {
  constexpr int kSize = kVector<Lane>, kBlock = 8 * kSize;
  for (; n >= kBlock; n -= kBlock, x += kBlock) out = sum_block<8>(out, x, step, depth, fours);
  Lane rest[kBlock];
  Lane* to = fours == 0 ? out : rest;
  int64_t i = 0;
  for (; i + kSize <= n; i += kSize) {
    Vector<Lane> v = load<Lane>(x + i);
    for (int64_t d = 1; d < depth; ++d) v += load<Lane>(x + i + d * step);
    store(to + i, v);
  }
  for (; i < n; ++i) {
    Lane v = lane<Lane, Conversion::value>(x[i]);
    for (int64_t d = 1; d < depth; ++d) v += lane<Lane, Conversion::value>(x[i + d * step]);
    to[i] = v;
  }
  if constexpr (!std::is_integral_v<Lane>) {
    if (fours != 0) join_fours(out, rest, n, fours);
  }
}

constexpr int kHeld = GPUREDUCE_VECTOR_BYTES == 64 ? 16 : 8;  // vectors of lanes in registers at once
constexpr int kAheadBytes = 2048;                             // from what is read to what is fetched

// Sums the first n elements of a chunk of kWidth columns that lie side by side; every column's count. Writes the chunk's
// leaves, joined by kVector / kWidth, and returns their end.
template <int kWidth, class Lane, class In>
Lane* sum_run(Lane* __restrict out, const In* __restrict x, int64_t n) {
  constexpr int kSize = kVector<Lane>, kRow = kLanes * kWidth, kPart = kHeld * kSize;
  // Skipping from row to row of lanes is nothing that the processor foresees: what comes after the run is fetched meanwhile.
  const In* next = x + n;
  const auto fetch = [&next]() __attribute__((always_inline)) {
    GPUREDUCE_UNROLL
    for (int i = 0; i < kPart; i += 64 / sizeof(In)) __builtin_prefetch(next + i);
    next += kPart;
  };
  for (int64_t lane = 0; lane < kRow; lane += kPart, x += kPart, n -= kPart) {
    if (n <= 0) {  // no element is left: as many joined leaves of padding
      for (Lane* const end = out + (kRow - lane) * kWidth / kSize; out < end; ++out) *out = padding<Lane>();
      return out;
    }
    Vector<Lane> v[kHeld];
    if (n >= kPart) {
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) v[i] = load<Lane>(x + i * kSize);
    } else {
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) v[i] = load_first<Lane>(x + i * kSize, n - i * kSize);
    }
    fetch();
    const In* row = x + kRow;
    int64_t left = n - kRow;
    for (; left >= kPart; left -= kRow, row += kRow) {
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) v[i] += load<Lane>(row + i * kSize);
      fetch();
    }
    if (left > 0) {
      fetch();
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        if (left <= i * kSize) break;
        v[i] += load_first<Lane>(row + i * kSize, left - i * kSize);
      }
    }
    out = join_block<kHeld>(out, v, kWidth);
  }
  return out;
}

// Whole chunks, side by side. Where all 32 registers can hold lanes, all is read strictly in order, which the processor
// foresees best. In the caches an instruction of its own for every vector is better still (64 KiB to 512 KiB, one thread: 200
// GB/s, and 135 by a loop); from memory it is worse (64 MiB: 54 GB/s, and 61 by a loop that fetches nothing ahead).
template <int kWidth, class Lane, class In>
void sum_chunks(Lane* __restrict out, const In* __restrict x, int64_t chunks, bool streams) {
  constexpr int kSize = kVector<Lane>, kRow = kLanes * kWidth, kPart = 32 * kSize;
  for (int64_t c = 0; c < chunks; ++c, x += kDepth * kRow) {
    if constexpr (GPUREDUCE_VECTOR_BYTES < 64 || !std::is_same_v<Lane, In>) {
      out = sum_run<kWidth>(out, x, kDepth * kRow);
    } else {
      for (int64_t lane = 0; lane < kRow; lane += kPart) {
        const In* row = x + lane;
        Vector<Lane> v[32];
        GPUREDUCE_UNROLL
        for (int i = 0; i < 32; ++i) v[i] = load<Lane>(row + i * kSize);
        if (streams) {
          for (int64_t d = 1; d < kDepth; ++d) {
            row += kRow;
            GPUREDUCE_UNROLL
            for (int i = 0; i < 32; ++i) v[i] += load<Lane>(row + i * kSize);
          }
        } else {
          GPUREDUCE_UNROLL
          for (int d = 1; d < kDepth; ++d) {
            GPUREDUCE_UNROLL
            for (int i = 0; i < 32; ++i) {
              v[i] += load<Lane>(row + d * kRow + i * kSize);
              __builtin_prefetch(row + d * kRow + i * kSize + kAheadBytes / sizeof(In));
            }
          }
        }
        out = join_block<32>(out, v, kWidth);
      }
    }
  }
}

// Rows of more than a row of lanes, and up to a chunk; n counts every column.
template <int kWidth, class Lane, class In>
void sum_rows(Lane* __restrict out, const In* __restrict x, int64_t rows, int64_t pitch, int64_t n, bool streams) {
  for (int64_t r = 0; r < rows; ++r, x += pitch, out += kLanes * kWidth * kWidth / kVector<Lane>) {
    if (n == kChunk * kWidth) sum_chunks<kWidth>(out, x, 1, streams);
    else sum_run<kWidth>(out, x, n);
  }
}

// As sum_run, for elements in **blocks** of kHeld vectors that lie anywhere, whole ones; in order, where registers can hold all
// lanes.
template <int kWidth, class Lane, class In>
void sum_blocks(Lane* __restrict out, const In* const* blocks, int64_t count) {
  constexpr int kSize = kVector<Lane>, kBlocks = kLanes * kWidth / (kHeld * kSize);  // of a row of lanes
  constexpr int kTogether = GPUREDUCE_VECTOR_BYTES == 64 && kBlocks == 2 ? 2 : 1;
  for (int64_t b = 0; b < kBlocks; b += kTogether) {
    Vector<Lane> v[kTogether * kHeld];
    GPUREDUCE_UNROLL
    for (int i = 0; i < kTogether * kHeld; ++i)
      v[i] = b + i / kHeld < count ? load<Lane>(blocks[b + i / kHeld] + i % kHeld * kSize) : padding<Lane>() - Vector<Lane>{};
    for (int64_t k = b + kBlocks; k < count; k += kBlocks) {
      GPUREDUCE_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        if (k + t == count) break;
        GPUREDUCE_UNROLL
        for (int i = 0; i < kHeld; ++i) v[t * kHeld + i] += load<Lane>(blocks[k + t] + i * kSize);
      }
    }
    out = join_block<kTogether * kHeld>(out, v, kWidth);
  }
}

// A chunk of one or two columns that is not whole, or in pieces: n elements from `begin` on.
template <Conversion C, class Lane, class In>
void sum_part(const Source<C, Lane, In>& source, Lane* out, Lane* buffer, int64_t row, int64_t begin, int64_t n) {
  using Loaded = typename Source<C, Lane, In>::Loaded;
  constexpr int64_t kBlock = kHeld * kVector<Lane>;
  const int64_t width = source.width, block = kBlock / width;
  const bool in_place = source.in_place && source.block;
  Cursor at(source.problem.reduced, begin);
  if (in_place && n <= at.left()) {
    const Loaded* x = source.at(row + at.offset());
    width == 1 ? sum_run<1>(out, x, n) : sum_run<2>(out, x, 2 * n);
    return;
  }
  if (!in_place || source.problem.reduced.fastest().size < block) {
    source.gather(buffer, row, begin, n);
    width == 1 ? sum_run<1, Lane, Lane>(out, buffer, n) : sum_run<2, Lane, Lane>(out, buffer, 2 * n);
    return;
  }
  // Only blocks that reach over the end of a piece are gathered.
  const Loaded* blocks[2 * kChunk / kBlock];
  Loaded* to = reinterpret_cast<Loaded*>(buffer);
  int64_t count = 0;
  while (n > 0) {
    const Loaded* x = source.at(row + at.offset());
    const int64_t run = min(n, at.left()), whole = run / block;
    for (int64_t k = 0; k < whole; ++k) blocks[count++] = x + k * kBlock;
    at.advance(whole * block);
    n -= whole * block;
    if (whole * block == run) continue;
    blocks[count++] = to;
    int64_t left = block;
    while (left > 0 && n > 0) {
      const int64_t size = min(min(n, at.left()), left);
      copy(to, source.at(row + at.offset()), size * width * sizeof(Loaded));
      at.advance(size);
      to += size * width;
      left -= size;
      n -= size;
    }
    for (; left > 0; --left) {
      for (int64_t w = 0; w < width; ++w) memcpy(to++, &kNoElement<Loaded>, sizeof(Loaded));
    }
  }
  width == 1 ? sum_blocks<1>(out, blocks, count) : sum_blocks<2>(out, blocks, count);
}

// The vectors of a chunk in pieces, or of a part of one, in blocks of as many lanes as registers hold: where they lie, from a
// row's begin. Those that begin in a piece and end in the next, or are not whole, are **split**: copied to a buffer first.
template <int kWidth, class Lane, class In>
class PieceVectors {
 public:
  static constexpr int kSize = kVector<Lane>;
  static constexpr int64_t kRow = kLanes * kWidth / kSize, kBlocks = kRow / kHeld;

  // In memory of the caller's: it is up to 128 KiB, more than the stack may have.
  static void* operator new(size_t, void* memory) { return memory; }

  // n elements from `begin` on.
  PieceVectors(const Dims& dims, int64_t begin, int64_t n) {
    Cursor at(dims, begin);
    int64_t done = 0, last = at.offset();
    Split* split = nullptr;
    for (int64_t run; n > 0; n -= run, at.advance(run)) {
      run = min(n, at.left());
      const int64_t end = done + run * kWidth, base = at.offset() - done, before = done % kSize;
      apart_ = apart_ && at.offset() >= last;
      last = at.offset() + run * kWidth;
      if (before > 0) {
        split->second = base + done - before;
        split->all = static_cast<int8_t>(min(kSize, end - done + before));
      }
      for (; count_ < end / kSize; ++count_) place_[number(count_)] = (base + count_ * kSize) * int64_t{sizeof(In)};
      if (count_ * kSize < end) {
        Block& block = blocks_[count_ % kRow / kHeld];
        const int64_t first = base + count_ * kSize;
        const int8_t here = static_cast<int8_t>(end - count_ * kSize);
        split = &block.splits[block.count++];
        *split = {first, first, number(count_++), here, here};
      }
      done = end;
    }
  }

  // Writes the leaves of a block of a row, joined by kVector / kWidth. The buffer holds kDepth * kHeld vectors.
  void sum_block(Lane* __restrict out, const In* row, int64_t b, char* buffer) {
    copy_splits(buffer, row, blocks_[b]);
    const int64_t* place = place_ + b * kDepth * kHeld;
    const auto at = [&](int i) __attribute__((always_inline)) {
      return load<Lane>(reinterpret_cast<const In*>(reinterpret_cast<const char*>(row) + place[i]));
    };
    Vector<Lane> v[kHeld];
    int64_t left = count_ - b * kHeld;  // vectors of a row of lanes, from the block's first on
    GPUREDUCE_UNROLL
    for (int i = 0; i < kHeld; ++i) v[i] = i < left ? at(i) : padding<Lane>() - Vector<Lane>{};
    for (left -= kRow; left >= kHeld; left -= kRow) {
      place += kHeld;
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) v[i] += at(i);
    }
    if (left > 0) {
      place += kHeld;
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        if (i == left) break;
        v[i] += at(i);
      }
    }
    join_block<kHeld>(out, v, kWidth);
  }

 private:
  struct Split {
    int64_t first, second;  // places of what would be its first element, in either piece
    int32_t number;
    int8_t here, all;  // its elements in the first piece, and in both
  };
  struct Block {
    int64_t count = 0;
    Split splits[kDepth * kHeld];
  };

  // Of a vector, block by block.
  static int32_t number(int64_t v) { return static_cast<int32_t>((v % kRow / kHeld * kDepth + v / kRow) * kHeld + v % kHeld); }

  void copy_splits(char* to, const In* row, const Block& block) {
    for (int64_t i = 0; i < block.count; ++i, to += sizeof(Narrow<Lane, In>)) {
      const Split& split = block.splits[i];
      const Narrow<Lane, In> v = load_split(row + split.first, row + split.second, split.here, split.all);
      memcpy(to, &v, sizeof(v));
      place_[split.number] = to - reinterpret_cast<const char*>(row);
    }
  }

  // `here` elements at x, those up to `all` at y, and padding.
  Narrow<Lane, In> load_split(const In* x, const In* y, int64_t here, int64_t all) const {
#if GPUREDUCE_VECTOR_BYTES < 64
    if (apart_ && all == kSize) {  // whole vectors may be loaded at either place, which is faster
      using Loaded = Bits<Lane, In>;
      const Loaded first = numbers<Loaded>(std::make_integer_sequence<int, kSize>{}) < static_cast<Bit<In>>(here);
      Loaded left, right;
      memcpy(&left, x, sizeof(left));
      memcpy(&right, y, sizeof(right));
      return reinterpret_cast<Narrow<Lane, In>>((left & first) | (right & ~first));
    }
#endif
    return load_over<Lane>(load_over<Lane>(none<Lane, In>(), x, 0, here), y, here, all);
  }

  int64_t count_ = 0;
  int64_t place_[kDepth * kRow];  // in bytes
  Block blocks_[kBlocks];
  bool apart_ = true;  // pieces lie behind each other
};

#if GPUREDUCE_VECTOR_BYTES == 64
// Adds n neighbouring elements to the lanes first, first + 1, ...: in aligned vectors, which can be loaded again as soon as
// they are stored. Meanwhile the elements that lie `ahead` of them are fetched.
template <class Lane, class In>
inline __attribute__((always_inline)) void add_run(Lane* __restrict lanes, int64_t first, const In* __restrict x, int64_t n,
                                                   int64_t ahead) {
  constexpr int kSize = kVector<Lane>;
  const auto add = [&](int64_t i, Vector<Lane> v) __attribute__((always_inline)) {
    store(lanes + i, load<Lane>(lanes + i) + v);
    __builtin_prefetch(x + i + ahead);
  };
  const int64_t before = first % kSize;  // lanes of the first vector that get nothing
  lanes += first - before;
  x -= before;
  n += before;
  int64_t i = 0;
  if (before > 0) {
    add(0, widened<Lane, In>(load_over<Lane>(none<Lane, In>(), x, before, min(n, kSize))));
    i = kSize;
  }
  for (; i + kSize <= n; i += kSize) add(i, load<Lane>(x + i));
  if (i < n) add(i, load_first<Lane>(x + i, n - i));
}
#endif

#if GPUREDUCE_VECTOR_BYTES == 64
// Writes the lanes of some rows' chunks in pieces, or of parts of them, in the order of memory, while the lanes wait in the L1
// cache.
template <int kWidth, class Lane, class In>
void add_runs_abreast(Lane* lanes, const In* const* rows, int64_t count, const Dims& dims, int64_t begin, int64_t n) {
  constexpr int64_t kRow = kLanes * kWidth;
  const int64_t ahead = dims.dims[dims.rank - 2].stride;
  for (int64_t i = 0; i < count * kRow; ++i) lanes[i] = padding<Lane>();
  Cursor piece(dims, begin);
  for (int64_t done = 0, run; done < n; done += run, piece.advance(run)) {
    const int64_t lane = done % kLanes;
    run = min(min(n - done, piece.left()), kLanes - lane);
    for (int64_t r = 0; r < count; ++r) add_run(lanes + r * kRow, lane * kWidth, rows[r] + piece.offset(), run * kWidth, ahead);
  }
}
#endif

// The sums of rows' chunks in short pieces, or of parts of them, whose leaves are `pitch` apart.
template <int kWidth, Conversion C, class Lane, class In>
void sum_pieces(const Source<C, Lane, In>& source, Lane* out, int64_t pitch, Lane* buffer, const Cursor& first, int64_t rows,
                int64_t begin, int64_t n, bool shares_stream) {
  using Loaded = typename Source<C, Lane, In>::Loaded;
  const Dims& dims = source.problem.reduced;
#if GPUREDUCE_VECTOR_BYTES == 64
  // From memory in its order: (128, 256, 14, 14) float32, 12 MiB a thread, on an EPYC 296 us, and 576 vector by vector; on a
  // Xeon blocks are 2 to 5% faster. In the cache blocks are: (64, 16 of 256, 14, 14) float32 13.4 us, and 15.4.
  if constexpr (std::is_same_v<Lane, Loaded>) {
    if (shares_stream) {
      constexpr int64_t kRow = kLanes * kWidth, kRows = kTileBytes / (kRow * sizeof(Lane));
      const Loaded* x[kRows];
      Cursor row = first;
      for (int64_t some; rows > 0; rows -= some) {
        some = min(rows, kRows);
        for (int64_t r = 0; r < some; ++r, row.advance(1)) x[r] = source.at(row.offset());
        add_runs_abreast<kWidth>(buffer, x, some, dims, begin, n);
        for (int64_t r = 0; r < some; ++r, out += pitch) sum_run<kWidth>(out, buffer + r * kRow, kRow);
      }
      return;
    }
  }
#endif
  // Block by block, as rows are mostly side by side: they share pages.
  using Vectors = PieceVectors<kWidth, Lane, Loaded>;
  static_assert(sizeof(Vectors) <= kDepth * Vectors::kRow * kPlaceBytes &&
                kDepth * kHeld * GPUREDUCE_VECTOR_BYTES <= kBufferBytes);
  Vectors& vectors = *new (buffer + kBufferBytes / sizeof(Lane)) Vectors(dims, begin, n);
  for (int64_t b = 0; b < Vectors::kBlocks; ++b) {
    Cursor row = first;
    for (int64_t r = 0; r < rows; ++r, row.advance(1))
      vectors.sum_block(out + r * pitch + b * kHeld * kWidth, source.at(row.offset()), b, reinterpret_cast<char*>(buffer));
  }
}

// Short rows of n elements of `width` columns, `pitch` from one to the next, padded to `size`; all three count every column.
// With `whole`, writes their leaves joined by kVector / width. kPer vectors hold a row, or a part of one.
template <int kPer, class Lane, class In>
void join_rows(Lane* __restrict out, const In* __restrict x, int64_t rows, int64_t pitch, int64_t n, int64_t size,
               int64_t width) {
  constexpr int kSize = kVector<Lane>, kRows = kHeld / kPer;
  for (int64_t r = 0; r < rows; r += kRows, x += kRows * pitch) {
    for (int64_t begin = 0; begin < size; begin += kHeld * kSize) {
      if (begin >= n) {  // no element is left: as many joined leaves of padding
        for (Lane* const end = out + (size - begin) * width / kSize; out < end; ++out) *out = padding<Lane>();
        break;
      }
      const int64_t full = (n - begin) / kSize, rest = (n - begin) % kSize;  // vectors, and what the next one holds
      Vector<Lane> v[kHeld];
      GPUREDUCE_UNROLL
      for (int j = 0; j < kRows; ++j) {
        const In* row = x + min(j, rows - 1 - r) * pitch + begin;  // after the last row that one again
        asm("" : "+r"(row));                                       // else the compiler keeps an address for every load
        const auto fill = [&](auto load_one) __attribute__((always_inline)) {
          GPUREDUCE_UNROLL
          for (int i = 0; i < kPer; ++i) {
            v[j * kPer + i] = load_one(i);
            __builtin_prefetch(row + i * kSize + kAheadBytes / sizeof(In));
          }
        };
        if (full >= kPer) {
          fill([&](int i) __attribute__((always_inline)) { return load<Lane>(row + i * kSize); });
        } else {
          fill([&](int i) __attribute__((always_inline)) {
            if (i < full) return load<Lane>(row + i * kSize);
            return i == full ? load_first<Lane>(row + i * kSize, rest) : padding<Lane>() - Vector<Lane>{};
          });
        }
      }
      out = join_block<kHeld>(out, v, width);
    }
  }
}

template <class Lane, class In>
void sum_short_rows(Lane* __restrict out, Lane* __restrict buffer, const In* __restrict x, int64_t rows, int64_t pitch,
                    int64_t n, int64_t size, int64_t width, bool whole, int fours) {
  constexpr int64_t kSize = kVector<Lane>;
  if (whole) {
    if (size == kSize) return join_rows<1>(out, x, rows, pitch, n, size, width);
    if (size == 2 * kSize) return join_rows<2>(out, x, rows, pitch, n, size, width);
    if (size == 4 * kSize) return join_rows<4>(out, x, rows, pitch, n, size, width);
    if (size == 8 * kSize) return join_rows<8>(out, x, rows, pitch, n, size, width);
    return join_rows<kHeld>(out, x, rows, pitch, n, size, width);
  }
  if (n == size && pitch == size) return sum_lanes(out, x, rows * size, 0, 1, fours);
  // Side by side. What a row writes too much, the next one overwrites.
  Lane* to = fours != 0 ? buffer : out;
  for (int64_t r = 0; r < rows; ++r, x += pitch, to += size) {
    for (int64_t i = 0; i < size; i += kSize) store(to + i, load_first<Lane>(x + i, n - i));
  }
  if (fours != 0) sum_lanes(out, buffer, rows * size, 0, 1, fours);
}

// Sums `lanes` lanes of each column: elements begin + i + d * step for i < lanes and d < depth, but for those from `end` on.
template <Conversion C, class Lane, class In>
void sum_tile(const Source<C, Lane, In>& source, Lane* out, Lane* buffer, int64_t row, int64_t begin, int64_t lanes,
              int64_t step, int64_t depth, int64_t end) {
  const int64_t width = source.width, span = (depth - 1) * step + lanes;
  if (source.in_place && span <= end - begin) {
    Cursor at(source.problem.reduced, begin);
    if (span <= at.left()) {
      const int64_t calls = source.block ? 1 : lanes, size = source.block ? lanes * width : width;
      for (int64_t i = 0; i < calls; ++i)
        sum_lanes(out + i * size, source.at(row + at.offset() + i * source.pitch), size, step * source.pitch, depth, 0);
      return;
    }
  }
  source.gather_lanes(buffer, row, begin, lanes, step, depth, end);
  sum_lanes(out, buffer, lanes * width, lanes * width, depth, 0);
}

// The leaves of many columns that begin with the elements begin, begin + 1, ..., joined in fours.
template <class Lane, class In>
void sum_columns(const Source<Conversion::value, Lane, In>& source, Lane* out, Lane* buffer, int64_t row, int64_t begin,
                 int64_t leaves, int64_t end) {
  const int64_t width = source.width, piece = source.problem.reduced.fastest().size;
  int64_t some = leaves;  // that lie in one piece, all as long; or four
  for (int64_t done = 0; done < leaves; done += some, out += some / 4 * width) {
    if (done > 0) some = done & -done;
    const int64_t first = begin + done, depth = min(kDepth, ceil_div(end - first, kLanes));
    if (depth <= 0) {
      for (int64_t i = 0; i < some / 4 * width; ++i) out[i] = padding<Lane>();
      continue;
    }
    const Cursor at(source.problem.reduced, first);
    const int64_t left = min(end - first, at.left());
    const auto span = [&] { return (depth - 1) * kLanes + some; };
    // Only fours in which a leaf ends before the others, or that reach over the end of a piece, are gathered.
    while (source.in_place && span() > left && some > 4 && (span() > end - first || span() <= piece)) some /= 2;
    if (source.in_place && span() <= left) {
      join_columns(out, source.at(row + at.offset()), some, width, source.pitch, kLanes * source.pitch, depth);
    } else {
      source.gather_lanes(buffer, row, first, some, kLanes, depth, end);
      join_columns(out, buffer, some, width, width, some * width, depth);
    }
  }
}

// --- the kernels ------------------------------------------------------------------------------------------------------------

// Floating sums. A tile of leaves is joined to one; tiles are joined like the bits of a counter: level k of the stack holds
// the sum of 2^k tiles, and a tile that comes carries.
template <class In, class Acc>
void sum_in_order(const Plan& plan, const Task& task, void* scratch, void* sums) {
  constexpr Conversion C = Conversion::value;
  Acc* buffer = static_cast<Acc*>(scratch);
  Acc* tile = reinterpret_cast<Acc*>(static_cast<char*>(scratch) + plan.buffer_bytes);
  Acc* other = tile + kTileBytes / sizeof(Acc);
  Acc* stack = other + kTileBytes / sizeof(Acc);
  const Source<C, Acc, In> source(plan, task);
  const int64_t leaves = plan.tile.leaves, lanes = min(leaves, kLanes), size = task.rows * task.width;
  // Leaves to an accumulator of the tile: a vector's, or four.
  const bool one_or_two = plan.tile.width <= 2;
  const bool whole = one_or_two && leaves >= kVector<Acc> / task.width;
  const int64_t together = whole ? kVector<Acc> / task.width : plan.tile.wide || (one_or_two && leaves >= 4) ? 4 : 1;
  const int64_t kept = leaves / together;  // of a row
  const int fours = one_or_two && together == 4 ? static_cast<int>(task.width) : 0;
  if constexpr (Source<C, Acc, In>::kDirect) {
    const int64_t length = min(task.end, plan.problem.length) - task.begin;
    if (plan.problem.length <= kShort && plan.problem.reduced.rank == 1 && source.in_place && task.width >= kVector<Acc>) {
      Cursor row(plan.problem.rows, task.first_row);
      for (int64_t r = 0; r < task.rows; ++r, row.advance(1))
        sum_short(static_cast<Acc*>(sums) + r * task.width, tile, source.at(row.offset() + task.begin * source.pitch), length,
                  task.width, source.pitch);
      return;
    }
  }
  int64_t tiles = 0;
  Acc* joined = tile;
  for (int64_t leaf = task.begin; leaf < task.end; leaf += leaves) {
    Cursor row(plan.problem.rows, task.first_row);
    if (plan.problem.length <= lanes && !plan.tile.wide) {  // short rows are one tile
      const bool in_place = source.in_place && source.block && plan.problem.reduced.rank == 1;
      const int64_t size = lanes * task.width, n = plan.problem.length * task.width;
      for (int64_t r = 0; r < task.rows;) {
        Acc* out = tile + r * kept * task.width;
        const int64_t wanted = min(task.rows - r, in_place ? row.left() : ceil_div(16 * kVector<Acc>, size));
        if (in_place) {
          sum_short_rows(out, buffer, source.at(row.offset()), wanted, plan.problem.rows.fastest().stride, n, size, task.width,
                         whole, fours);
          row.advance(wanted);
        } else {
          for (int64_t i = 0; i < wanted; ++i, row.advance(1))
            source.gather(buffer + i * n, row.offset(), 0, plan.problem.length);
          sum_short_rows(out, buffer + wanted * n, buffer, wanted, n, n, size, task.width, whole, fours);
        }
        r += wanted;
      }
    } else if (source.in_place && source.block && one_or_two && plan.problem.reduced.rank == 1 &&
               plan.problem.length <= kChunk) {
      const int64_t pitch = plan.problem.rows.fastest().stride;
      for (int64_t r = 0, some; r < task.rows; r += some, row.advance(some)) {
        some = min(task.rows - r, row.left());
        const auto* x = source.at(row.offset());
        Acc* out = tile + r * kept * task.width;
        task.width == 1 ? sum_rows<1>(out, x, some, pitch, plan.problem.length, plan.streams)
                        : sum_rows<2>(out, x, some, pitch, 2 * plan.problem.length, plan.streams);
      }
    } else {
      const int64_t first = leaf_start(leaf);
      Cursor at(plan.problem.reduced, first);
      int64_t chunks = 0;  // whole ones, side by side in every row
      if (source.in_place && source.block && one_or_two && plan.problem.length >= kChunk)
        chunks = min(min(plan.problem.length - first, at.left()) / kChunk, leaves / kLanes);
      const int64_t rows = source.abreast ? task.rows : 1;  // at once
      for (int64_t r = 0; r < task.rows; r += rows, row.advance(1)) {
        if (chunks > 0) {
          const auto* x = source.at(row.offset() + at.offset());
          Acc* out = tile + r * kept * task.width;
          task.width == 1 ? sum_chunks<1>(out, x, chunks, plan.streams) : sum_chunks<2>(out, x, chunks, plan.streams);
        }
        int64_t l = chunks * kLanes;
        for (; l < leaves; l += lanes) {
          Acc* out = tile + (r * leaves + l) / together * task.width;
          const int64_t begin = leaf_start(leaf + l), depth = min(kDepth, ceil_div(plan.problem.length - begin, kLanes));
          const int64_t n = min(kChunk, plan.problem.length - begin), pitch = kept * task.width;
          if (plan.tile.wide) {
            sum_columns(source, out, buffer, row.offset(), begin, lanes, plan.problem.length);
          } else if (depth <= 0) {
            for (int64_t i = 0; i < rows; ++i, out += pitch) {
              for (int64_t k = 0; k < lanes / together * task.width; ++k) out[k] = padding<Acc>();
            }
          } else if (source.abreast) {
            task.width == 1 ? sum_pieces<1>(source, out, pitch, buffer, row, rows, begin, n, plan.shares_stream)
                            : sum_pieces<2>(source, out, pitch, buffer, row, rows, begin, n, plan.shares_stream);
          } else if (one_or_two) {
            sum_part(source, out, buffer, row.offset(), begin, n);
          } else {
            sum_tile(source, out, buffer, row.offset(), begin, lanes, kLanes, depth, plan.problem.length);
          }
        }
      }
    }
    joined = join_tile(tile, other, task.rows, kept, task.width);
    if (leaf + leaves >= task.end) break;
    int level = 0;
    for (; tiles >> level & 1; ++level) join_left(joined, stack + level * size, size);
    memcpy(stack + level * size, joined, size * sizeof(Acc));
    ++tiles;
  }
  for (int level = 0; tiles >> level; ++level) {
    if (tiles >> level & 1) join_left(joined, stack + level * size, size);
  }
  memcpy(sums, joined, size * sizeof(Acc));
}

// Integer sums, modulo 2^64 and so free of any order: the lanes of a tile take neighbouring elements, and many of them.
template <class In, Conversion C>
void sum_exactly(const Plan& plan, const Task& task, void* scratch, void* sums) {
  using Lane = typename ExactLane<In, C>::type;
  using Signed = std::make_signed_t<Lane>;
  Lane* buffer = static_cast<Lane*>(scratch);
  Lane* tile = reinterpret_cast<Lane*>(static_cast<char*>(scratch) + plan.buffer_bytes);
  const Source<C, Lane, In> source(plan, task);
  const int64_t width = task.width, lanes = min(plan.tile.leaves, task.end - task.begin);
  Cursor row(plan.problem.rows, task.first_row);
  for (int64_t r = 0; r < task.rows; ++r, row.advance(1)) {
    uint64_t* __restrict sum = static_cast<uint64_t*>(sums) + r * width;
    for (int64_t w = 0; w < width; ++w) sum[w] = 0;
    for (int64_t begin = task.begin; begin < task.end;) {
      int64_t left = min(Cursor(plan.problem.reduced, begin).left(), task.end - begin);
      int64_t depth = source.in_place && left >= lanes  // in place, or what the buffer holds
                          ? min(width == 1 ? kExactDepth : kDepth, left / lanes)
                          : min(min(kExactDepth, (task.end - begin + lanes - 1) / lanes),
                                plan.buffer_bytes / (lanes * width * int64_t{sizeof(Lane)}));
      sum_tile(source, tile, buffer, row.offset(), begin, lanes, lanes, depth, task.end);
      if (width == 1) {
        uint64_t total = 0;
        for (int64_t l = 0; l < lanes; ++l) total += static_cast<uint64_t>(static_cast<Signed>(tile[l]));
        sum[0] += total;
      } else {
        for (int64_t l = 0; l < lanes; ++l) {
          for (int64_t w = 0; w < width; ++w) sum[w] += static_cast<uint64_t>(static_cast<Signed>(tile[l * width + w]));
        }
      }
      begin += lanes * depth;
    }
  }
}

template <class In>
Kernel kernel_of(Accumulator accumulator, Conversion conversion) {
  if (conversion == Conversion::nonzero) return sum_exactly<In, Conversion::nonzero>;
  if constexpr (!IsComplex<In>::value) {  // these are summed as pairs of real numbers
    constexpr bool kInteger = std::is_integral_v<In> || std::is_same_v<In, Boolean>;
    if (accumulator == Accumulator::i64) return sum_exactly<In, Conversion::value>;
    if constexpr (!kInteger && !std::is_same_v<In, double>) {
      if (accumulator == Accumulator::f32) return sum_in_order<In, float>;
    }
    if constexpr (!kInteger || sizeof(In) == 8) {
      if (accumulator == Accumulator::f64) return sum_in_order<In, double>;
    }
  }
  return nullptr;
}

}  // namespace

Kernel kernel_for(DType in, Accumulator accumulator, Conversion conversion) {
  switch (in) {
#define GPUREDUCE_KERNEL(name, type, kind, own, wide, family) \
  case DType::name: return kernel_of<type>(accumulator, conversion);
    GPUREDUCE_DTYPES(GPUREDUCE_KERNEL)
#undef GPUREDUCE_KERNEL
  }
  return nullptr;
}

}  // namespace gpureduce::cpu::GPUREDUCE_ISA
