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

inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

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

template <class Lane, class In>
inline __attribute__((always_inline)) Vector<Lane> load(const In* x) {
  constexpr int kSize = kVector<Lane>;
  if constexpr (std::is_same_v<Lane, In>) {
    Vector<Lane> v;
    memcpy(&v, x, sizeof(v));
    return v;
#if GPUREDUCE_VECTOR_BYTES == 32
  } else if constexpr (std::is_same_v<In, BFloat16>) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    return reinterpret_cast<Vector<Lane>>(_mm256_slli_epi32(bits, 16));
  } else if constexpr (std::is_same_v<In, Half>) {
    return reinterpret_cast<Vector<Lane>>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
#elif GPUREDUCE_VECTOR_BYTES == 64
  } else if constexpr (std::is_same_v<In, BFloat16>) {
    const __m512i bits = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    return reinterpret_cast<Vector<Lane>>(_mm512_maskz_slli_epi32(0xffff, bits, 16));
  } else if constexpr (std::is_same_v<In, Half>) {
    return reinterpret_cast<Vector<Lane>>(
        _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))));
#endif
  } else {
    typename VectorOf<In, kSize>::type narrow;
    memcpy(&narrow, x, sizeof(narrow));
    return __builtin_convertvector(narrow, Vector<Lane>);
  }
}

template <class Lane>
inline __attribute__((always_inline)) void store(Lane* out, Vector<Lane> v) {
  memcpy(out, &v, sizeof(v));
}

// Lane i of the result is lane kIndex[i] of a followed by b.
template <class Acc, int... kIndex>
inline __attribute__((always_inline)) Vector<Acc> select(Vector<Acc> a, Vector<Acc> b) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, kIndex...);
#else
  using Index = Vector<std::conditional_t<sizeof(Acc) == 4, int32_t, int64_t>>;
  return __builtin_shuffle(a, b, Index{kIndex...});
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

// --- gathering --------------------------------------------------------------------------------------------------------------

template <int kSize>
inline __attribute__((always_inline)) bool copy_by(char* to, const char* from, int64_t size) {
  if (size < kSize || kSize > GPUREDUCE_VECTOR_BYTES) return false;
  typedef char Bytes __attribute__((vector_size(kSize)));
  Bytes bytes;
  for (int64_t i = 0; i + kSize <= size; i += kSize) {
    memcpy(&bytes, from + i, kSize);
    memcpy(to + i, &bytes, kSize);
  }
  memcpy(&bytes, from + size - kSize, kSize);  // overlaps what is there already
  memcpy(to + size - kSize, &bytes, kSize);
  return true;
}

// memcpy for the short runs that it is slow for.
inline void copy(void* to, const void* from, int64_t size) {
  char* t = static_cast<char*>(to);
  const char* f = static_cast<const char*>(from);
  copy_by<64>(t, f, size) || copy_by<32>(t, f, size) || copy_by<16>(t, f, size) || copy_by<8>(t, f, size) ||
      copy_by<4>(t, f, size) || copy_by<2>(t, f, size) || copy_by<1>(t, f, size);
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

  Source(const Plan& p, const Task& task)
      : plan(p),
        input(static_cast<const In*>(p.input) + task.first_column * p.column_stride),
        width(task.width),
        stride(width == 1 ? p.reduced.fastest().stride : p.column_stride),
        pitch(p.reduced.fastest().stride),
        block(width == 1 || (stride == 1 && pitch == width)),
        in_place(kDirect && stride == 1 && !p.negate && !p.conjugate) {}

  // What sum_lanes reads where it is.
  const std::conditional_t<kDirect, Direct, Lane>* at(int64_t offset) const {
    return reinterpret_cast<const std::conditional_t<kDirect, Direct, Lane>*>(input + offset);
  }

  // Writes n elements of each column to to[n][width].
  void gather(Lane* to, int64_t row, int64_t first, int64_t n) const {
    Cursor at(plan.reduced, first);
    for (int64_t left = n; left > 0;) {
      const int64_t run = min(left, at.left()), calls = block ? 1 : run, size = block ? run * width : width;
      const In* from = input + row + at.offset();
      for (int64_t i = 0; i < calls; ++i, to += size, from += pitch) {
        if (plan.negate || plan.conjugate) convert_signed<C>(to, from, size, stride, plan.negate, plan.conjugate);
        else if (kSame && stride == 1) copy(to, from, size * sizeof(In));
        else convert<C>(to, from, size, stride);
      }
      at.advance(run);
      left -= run;
    }
  }

  const Plan& plan;
  const In* const input;
  const int64_t width, stride;  // of neighbours in the tile
  const int64_t pitch;          // from one element of a column to the next
  const bool block;             // one stride walks all columns of all elements of the fastest dim
  const bool in_place;          // neighbours can be summed where they are
};

// --- joining ----------------------------------------------------------------------------------------------------------------

// out[p][width] = in[2p][width] + in[2p + 1][width]
template <class Acc>
void join_pairs(Acc* __restrict out, const Acc* __restrict in, int64_t pairs, int64_t width) {
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

// Joins tile[rows][leaves][width] to one leaf a row, back and forth between two buffers; returns the one it ended in.
template <class Acc>
Acc* join_tile(Acc* tile, Acc* other, int64_t rows, int64_t leaves, int64_t width) {
  while (leaves > 1) {
    bool fours = leaves >= 4 && width <= 2;
    if (fours) join_fours(other, tile, rows * leaves * width, width);
    else join_pairs(other, tile, rows * leaves / 2, width);
    leaves /= fours ? 4 : 2;
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
// Returns the end of what it wrote. With `next`, as many elements from there on are fetched meanwhile, and it moves on.
template <int kCount, class Lane, class In>
inline __attribute__((always_inline)) Lane* sum_block(Lane* __restrict out, const In* __restrict x, int64_t step, int64_t depth,
                                                      int fours, const In** next = nullptr) {
  constexpr int kSize = kVector<Lane>;
  Vector<Lane> v[kCount];
  GPUREDUCE_UNROLL
  for (int i = 0; i < kCount; ++i) v[i] = load<Lane>(x + i * kSize);
  for (int64_t d = 1;; ++d) {
    if (next != nullptr) {
      GPUREDUCE_UNROLL
      for (int i = 0; i < kCount * kSize; i += 64 / sizeof(In)) __builtin_prefetch(*next + i);
      *next += kCount * kSize;
    }
    if (d >= depth) break;
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

// The same for chunks of one or two columns, where they lie, in fours. Skipping from row to row of lanes is nothing that the
// processor foresees: what comes after the chunk is fetched meanwhile, as it lies.
template <int kCount, class Lane, class In>
void sum_chunks(Lane* __restrict out, const In* __restrict x, int64_t chunks, int64_t width, int64_t depth) {
  constexpr int kBlock = kCount * kVector<Lane>;
  const int64_t step = kLanes * width;
  const In* next = x + depth * step;
  for (int64_t c = 0; c < chunks; ++c, x += (depth - 1) * step) {
    for (int64_t n = step; n > 0; n -= kBlock, x += kBlock)
      out = sum_block<kCount>(out, x, step, depth, static_cast<int>(width), kCount > 8 ? nullptr : &next);
  }
}

// 32 registers hold a chunk's lanes of float32, which are then read strictly one after the other: what the processor foresees
// best (64 MiB, one thread: 57 GB/s, and 44 with 8). In its caches, and for shorter rows, 8 are faster.
template <class Lane, class In>
void sum_chunks(const Plan& plan, Lane* out, const In* x, int64_t chunks, int64_t width, int64_t depth) {
  constexpr bool kWide = GPUREDUCE_VECTOR_BYTES == 64 && std::is_same_v<Lane, In>;
  if (kWide && plan.streams && depth == kDepth) sum_chunks<kWide ? 32 : 8>(out, x, chunks, width, depth);
  else sum_chunks<8>(out, x, chunks, width, depth);
}

// Sums `lanes` lanes of each column: elements begin + i + d * step for i < lanes and d < depth, but for those from `end` on.
template <Conversion C, class Lane, class In>
void sum_tile(const Source<C, Lane, In>& source, Lane* out, Lane* buffer, int64_t row, int64_t begin, int64_t lanes,
              int64_t step, int64_t depth, int64_t end, int fours) {
  const int64_t width = source.width, span = (depth - 1) * step + lanes;
  if (source.in_place && (source.block || fours == 0) && span <= end - begin) {
    Cursor at(source.plan.reduced, begin);
    if (span <= at.left()) {
      if constexpr (!std::is_integral_v<Lane>) {
        if (fours != 0 && lanes == kLanes) return sum_chunks(source.plan, out, source.at(row + at.offset()), 1, width, depth);
      }
      const int64_t calls = source.block ? 1 : lanes, size = source.block ? lanes * width : width;
      for (int64_t i = 0; i < calls; ++i)
        sum_lanes(out + i * size, source.at(row + at.offset() + i * source.pitch), size, step * source.pitch, depth, fours);
      return;
    }
  }
  Lane* to = buffer;
  const int64_t whole = lanes == step ? depth : 1;  // neighbouring rows of lanes at once
  for (int64_t d = 0; d < depth; d += whole, begin += whole * step) {
    const int64_t n = min(whole * lanes, end - begin), all = whole * lanes * width;
    source.gather(to, row, begin, n);
    for (int64_t i = n * width; i < all; ++i) to[i] = padding<Lane>();
    to += all;
  }
  sum_lanes(out, buffer, lanes * width, lanes * width, depth, fours);
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
  const int64_t leaves = plan.tile_leaves, lanes = min(leaves, kLanes), size = task.rows * task.width;
  const int fours = leaves >= 4 && task.width <= 2 ? static_cast<int>(task.width) : 0;
  const int64_t kept = fours ? leaves / 4 : leaves;  // leaves of a row after sum_lanes
  int64_t tiles = 0;
  Acc* joined = tile;
  for (int64_t leaf = leaf_count(task.begin), end = leaf_count(task.end); leaf < end; leaf += leaves) {
    Cursor row(plan.rows, task.first_row);
    if (plan.length <= lanes) {  // short rows are one tile
      const int64_t row_size = lanes * task.width;
      if (source.in_place && source.block && plan.reduced.rank == 1 && plan.length == lanes && plan.rows.rank == 1 &&
          (task.rows == 1 || plan.rows.fastest().stride == row_size)) {
        sum_lanes(tile, source.at(row.offset()), task.rows * row_size, 0, 1, fours);
      } else {
        for (int64_t i = 0; plan.length < lanes && i < task.rows * row_size; ++i) buffer[i] = padding<Acc>();
        const bool whole = source.kSame && source.in_place && source.block && plan.reduced.rank == 1;
        for (int64_t r = 0; r < task.rows; ++r, row.advance(1)) {
          if (whole) copy(buffer + r * row_size, source.at(row.offset()), plan.length * task.width * sizeof(In));
          else source.gather(buffer + r * row_size, row.offset(), 0, plan.length);
        }
        sum_lanes(tile, buffer, task.rows * row_size, 0, 1, fours);
      }
    } else {
      const int64_t first = leaf_start(leaf);
      Cursor at(plan.reduced, first);
      int64_t chunks = 0;  // whole ones, side by side in every row
      if (source.in_place && source.block && fours != 0 && plan.length >= kChunk)
        chunks = min(min(task.end - first, at.left()) / kChunk, leaves / kLanes);
      for (int64_t r = 0; r < task.rows; ++r, row.advance(1)) {
        if (chunks > 0)
          sum_chunks(plan, tile + r * kept * task.width, source.at(row.offset() + at.offset()), chunks, task.width, kDepth);
        int64_t l = chunks * kLanes;
        for (; l < leaves; l += lanes) {
          Acc* out = tile + (r * leaves + l) * kept / leaves * task.width;
          const int64_t begin = leaf_start(leaf + l), depth = min(kDepth, (task.end - begin + kLanes - 1) / kLanes);
          if (depth > 0) {
            sum_tile(source, out, buffer, row.offset(), begin, lanes, kLanes, depth, task.end, fours);
          } else {
            for (int64_t i = 0; i < lanes * kept / leaves * task.width; ++i) out[i] = padding<Acc>();
          }
        }
      }
    }
    joined = join_tile(tile, other, task.rows, kept, task.width);
    if (leaf + leaves >= end) break;
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
  const int64_t width = task.width, lanes = min(plan.tile_leaves, task.end - task.begin);
  Cursor row(plan.rows, task.first_row);
  for (int64_t r = 0; r < task.rows; ++r, row.advance(1)) {
    uint64_t* __restrict sum = static_cast<uint64_t*>(sums) + r * width;
    for (int64_t w = 0; w < width; ++w) sum[w] = 0;
    for (int64_t begin = task.begin; begin < task.end;) {
      int64_t left = min(Cursor(plan.reduced, begin).left(), task.end - begin);
      int64_t depth = source.in_place && left >= lanes  // in place, or what the buffer holds
                          ? min(width == 1 ? kExactDepth : kDepth, left / lanes)
                          : min(min(kExactDepth, (task.end - begin + lanes - 1) / lanes),
                                plan.buffer_bytes / (lanes * width * int64_t{sizeof(Lane)}));
      sum_tile(source, tile, buffer, row.offset(), begin, lanes, lanes, depth, task.end, 0);
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
