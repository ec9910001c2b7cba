// The kernels of one instruction set, in namespace GPUREDUCE_ISA: plain loops for the compiler to vectorise. They come at the
// end of a source file, after a pragma that switches the instruction set on for all that follows. Nothing here may therefore
// be shared with other files: no std::, only always-inline functions from the headers, the rest in an unnamed namespace.

#ifdef __clang__
#pragma clang fp contract(off)  // nothing here multiplies and adds, so no other compiler can fuse anything either
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
inline T negated(T x) { return static_cast<T>(0 - static_cast<uint64_t>(x)); }
template <class T>
inline Complex<T> negated(Complex<T> x) { return x; }  // comes here only to be compared with zero

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

// --- adding elements to a tile ----------------------------------------------------------------------------------------------

// lanes[i] += x[i * stride]
template <Conversion C, class Lane, class In>
void add(Lane* __restrict lanes, const In* __restrict x, int64_t n, int64_t stride) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) lanes[i] += lane<Lane, C>(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) lanes[i] += lane<Lane, C>(x[i * stride]);
  }
}

// The same for a lazily negated or conjugated view.
template <Conversion C, class Lane, class In>
void add_signed(Lane* __restrict lanes, const In* __restrict x, int64_t n, int64_t stride, bool negate, bool conjugate) {
  for (int64_t i = 0; i < n; ++i) {
    In element = x[i * stride];
    if (negate != (conjugate && i % 2)) element = negated(element);
    lanes[i] += lane<Lane, C>(element);
  }
}

// lanes[i] += x[i]; lanes[i] += x[i + step]; ... eight of them, which is the depth of a full chunk: floating lanes begin here.
template <Conversion C, class Lane, class In>
void add_eight(Lane* __restrict lanes, const In* __restrict x, int64_t n, int64_t step) {
  const In *x1 = x + step, *x2 = x1 + step, *x3 = x2 + step, *x4 = x3 + step, *x5 = x4 + step, *x6 = x5 + step, *x7 = x6 + step;
  for (int64_t i = 0; i < n; ++i) {
    Lane v = lane<Lane, C>(x[i]);
    v += lane<Lane, C>(x1[i]);
    v += lane<Lane, C>(x2[i]);
    v += lane<Lane, C>(x3[i]);
    v += lane<Lane, C>(x4[i]);
    v += lane<Lane, C>(x5[i]);
    v += lane<Lane, C>(x6[i]);
    v += lane<Lane, C>(x7[i]);
    lanes[i] = std::is_integral_v<Lane> ? lanes[i] + v : v;
  }
}

// The elements of `width` columns as they lie in memory.
struct Source {
  Source(const Plan& p, int64_t width)
      : plan(p), width(width), element_stride(p.reduced.fastest().stride),
        unit((width == 1 ? element_stride : p.column_stride) == 1), block(unit && (width == 1 || element_stride == width)) {}

  const Plan& plan;
  const int64_t width, element_stride;
  const bool unit;   // neighbours in the tile are neighbours in memory, columns first
  const bool block;  // and so are neighbouring elements of all columns

  // Adds n elements of each column, which the fastest dim holds, to tile[n][width].
  template <Conversion C, class Lane, class In>
  void add_run(Lane* tile, const In* x, int64_t n) const {
    // One call where one stride walks all.
    int64_t calls = block || width == 1 ? 1 : n, size = block ? n * width : width == 1 ? n : width;
    int64_t stride = unit ? 1 : width == 1 ? element_stride : plan.column_stride;
    for (int64_t i = 0; i < calls; ++i, tile += width, x += element_stride) {
      if (plan.negate || plan.conjugate) add_signed<C>(tile, x, size, stride, plan.negate, plan.conjugate);
      else add<C>(tile, x, size, stride);
    }
  }

  // Sums elements begin + i + d * step of each column, d = 0 ... depth - 1, left to right, into tile[i][width] for i < lanes.
  // Elements from `end` on do not exist.
  template <Conversion C, class Lane, class In>
  void fill(Lane* tile, const In* x, int64_t begin, int64_t lanes, int64_t step, int depth, int64_t end) const {
    constexpr bool kOrdered = !std::is_integral_v<Lane>;
    const int64_t eight = 7 * step + lanes;  // the span of eight elements a lane
    for (int d = 0; d == 0 || (d < depth && begin < end);) {
      Cursor at(plan.reduced, begin < end ? begin : 0);
      const bool deep = unit && !plan.negate && !plan.conjugate && d + 8 <= depth && eight <= end - begin && eight <= at.left();
      if (d == 0 && !(deep && kOrdered)) {
        for (int64_t i = 0; i < lanes * width; ++i) tile[i] = padding<Lane>();
      }
      if (deep) {
        const int64_t calls = block ? 1 : lanes, size = block ? lanes * width : width;
        for (int64_t i = 0; i < calls; ++i)
          add_eight<C>(tile + i * size, x + at.offset() + i * element_stride, size, step * element_stride);
      } else {
        for (int64_t i = 0, n = min(lanes, end - begin); i < n;) {
          int64_t run = min(n - i, at.left());
          add_run<C>(tile + i * width, x + at.offset(), run);
          at.advance(run);
          i += run;
        }
      }
      d += deep ? 8 : 1;
      begin += (deep ? 8 : 1) * step;
    }
  }
};

// --- joining ----------------------------------------------------------------------------------------------------------------

template <class Acc>
void join_neighbours(Acc* __restrict out, const Acc* __restrict in, int64_t pairs, int64_t width) {
  if (width == 1) {
    for (int64_t p = 0; p < pairs; ++p) out[p] = in[2 * p] + in[2 * p + 1];
  } else if (width == 2) {
    for (int64_t p = 0; p < pairs; ++p) {
      out[2 * p] = in[4 * p] + in[4 * p + 2];
      out[2 * p + 1] = in[4 * p + 1] + in[4 * p + 3];
    }
  } else {
    for (int64_t p = 0; p < pairs; ++p, in += 2 * width, out += width) {
      for (int64_t w = 0; w < width; ++w) out[w] = in[w] + in[width + w];
    }
  }
}

// Joins tile[rows][leaves][width] to one leaf a row, back and forth between two buffers; returns the one it ended in.
template <class Acc>
Acc* join_tile(Acc* tile, Acc* other, int64_t rows, int64_t leaves, int64_t width) {
  for (; leaves > 1; leaves /= 2) {
    join_neighbours(other, tile, rows * leaves / 2, width);
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

// --- the kernels ------------------------------------------------------------------------------------------------------------

// Floating sums. A tile of leaves is joined to one; tiles are joined like the bits of a counter: level k of the stack holds
// the sum of 2^k tiles, and a tile that comes carries.
template <class In, class Acc>
void sum_in_order(const Plan& plan, const Task& task, void* scratch, void* sums) {
  constexpr Conversion C = Conversion::value;
  Acc* tile = static_cast<Acc*>(scratch);
  Acc* other = tile + kTileBytes / sizeof(Acc);
  Acc* stack = other + kTileBytes / sizeof(Acc);
  Source source(plan, task.width);
  const In* input = static_cast<const In*>(plan.input) + task.first_column * plan.column_stride;
  const int64_t leaves = plan.tile_leaves, lanes = min(leaves, kLanes), row_size = leaves * task.width;
  const int64_t size = task.rows * task.width;
  const bool rows_touch = source.block && !plan.negate && !plan.conjugate && plan.reduced.rank == 1 && plan.length == leaves && leaves <= kLanes &&
                          plan.rows.fastest().stride == row_size;
  int64_t tiles = 0;
  Acc* joined = tile;
  for (int64_t leaf = leaf_count(task.begin), end = leaf_count(task.end); leaf < end; leaf += leaves) {
    Cursor row(plan.rows, task.first_row);
    for (int64_t r = 0; r < task.rows;) {
      int64_t run = 1;
      if (rows_touch) {
        run = min(task.rows - r, row.left());
        for (int64_t i = 0; i < run * row_size; ++i) tile[r * row_size + i] = lane<Acc, C>(input[row.offset() + i]);
      } else {
        for (int64_t l = 0; l < leaves; l += lanes)
          source.fill<C>(tile + r * row_size + l * task.width, input + row.offset(), leaf_start(leaf + l), lanes, kLanes, kDepth,
                         task.end);
      }
      row.advance(run);
      r += run;
    }
    joined = join_tile(tile, other, task.rows, leaves, task.width);
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
  Lane* __restrict tile = static_cast<Lane*>(scratch);
  Source source(plan, task.width);
  const In* input = static_cast<const In*>(plan.input) + task.first_column * plan.column_stride;
  const int64_t width = task.width;
  Cursor row(plan.rows, task.first_row);
  for (int64_t r = 0; r < task.rows; ++r, row.advance(1)) {
    uint64_t* __restrict sum = static_cast<uint64_t*>(sums) + r * width;
    for (int64_t w = 0; w < width; ++w) sum[w] = 0;
    for (int64_t begin = task.begin; begin < task.end; begin += plan.tile_leaves * kExactDepth) {
      int64_t lanes = min(plan.tile_leaves, task.end - begin);
      source.fill<C>(tile, input + row.offset(), begin, lanes, plan.tile_leaves, kExactDepth, task.end);
      if (width == 1) {
        uint64_t total = 0;
        for (int64_t l = 0; l < lanes; ++l) total += static_cast<uint64_t>(static_cast<Signed>(tile[l]));
        sum[0] += total;
      } else {
        for (int64_t l = 0; l < lanes; ++l) {
          for (int64_t w = 0; w < width; ++w) sum[w] += static_cast<uint64_t>(static_cast<Signed>(tile[l * width + w]));
        }
      }
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
  case DType::name:                                           \
    return kernel_of<type>(accumulator, conversion);
    GPUREDUCE_DTYPES(GPUREDUCE_KERNEL)
#undef GPUREDUCE_KERNEL
  }
  return nullptr;
}

}  // namespace gpureduce::cpu::GPUREDUCE_ISA
