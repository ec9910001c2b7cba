// Locates a task's elements, and copies those that cannot be loaded as vectors: strided, in pieces, lazily negated or
// conjugated, or slow to widen.

template <int kSize>
inline __attribute__((always_inline)) bool copy_by(char* to, const char* from, int64_t size) {
  if (size < kSize || kSize > GPUREDUCE_VECTOR_BYTES) return false;
  typedef char Bytes __attribute__((vector_size(kSize)));
  const auto move = [=](int64_t at) __attribute__((always_inline)) {
    Bytes bytes;
    memcpy(&bytes, from + at, kSize);
    memcpy(to + at, &bytes, kSize);
  };
  move(0);  // the moves at both ends overlap the aligned ones between them
  for (int64_t i = kSize - reinterpret_cast<uintptr_t>(to) % kSize; i + kSize <= size; i += kSize) move(i);
  move(size - kSize);
  return true;
}

// A memcpy for short runs, for which memcpy is slow.
inline void copy(void* to, const void* from, int64_t size) {
  char* t = static_cast<char*>(to);
  const char* f = static_cast<const char*>(from);
  copy_by<64>(t, f, size) || copy_by<32>(t, f, size) || copy_by<16>(t, f, size) || copy_by<8>(t, f, size) ||
      copy_by<4>(t, f, size) || copy_by<2>(t, f, size) || copy_by<1>(t, f, size);
}

// to[i] = x[i * stride] as an addend
template <Map C, class Lane, class In>
__attribute__((noinline)) void convert(Lane* __restrict to, const In* __restrict x, int64_t n, int64_t stride) {
  int64_t i = 0;
  if (stride == 1) {
    if constexpr (C == Map::value && kLoads<Lane, In>)
      for (; i + kVector<Lane> <= n; i += kVector<Lane>) store(to + i, load<Lane>(x + i));
    for (; i < n; ++i) to[i] = lane<Lane, C>(x[i]);
  } else if (stride == 2) {
    for (; i < n; ++i) to[i] = lane<Lane, C>(x[2 * i]);
  } else {
    for (; i < n; ++i) to[i] = lane<Lane, C>(x[i * stride]);
  }
}

// The same for a lazily negated or conjugated view.
template <Map C, class Lane, class In>
void convert_signed(Lane* to, const In* x, int64_t n, int64_t stride, bool negate, bool conjugate) {
  for (int64_t i = 0; i < n; ++i) {
    In element = x[i * stride];
    to[i] = lane<Lane, C>(negate != (conjugate && i % 2) ? negated(element) : element);
  }
}

// Elements whose dtype and map are known only at run time.
struct Unknown {};

// Applies the map to n numbers.
template <class T>
void map_numbers(T* x, int64_t n, Map map) {
  const auto each = [&](auto f) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; ++i) x[i] = f(x[i]);
  };
  if constexpr (std::is_floating_point_v<T>) {
#define GPUREDUCE_MAP(name) \
  if (map == Map::name) return each([](T v) { return mapped<Map::name, T>(v); });
    GPUREDUCE_REAL_MAPS(GPUREDUCE_MAP)
#undef GPUREDUCE_MAP
    if (map == Map::negative_magnitude) each([](T v) { return mapped<Map::negative_magnitude, T>(v); });
    else if (map == Map::negative) each([](T v) { return -v; });
  }
}

// to[i] = the mapped x[i * stride], of dtype p.in
template <class Lane>
void convert_unknown(Lane* to, const char* x, int64_t n, int64_t stride, const CpuProblem& p) {
  switch (p.in) {
#define GPUREDUCE_CONVERT(name, type, kind, own, wide, family)                        \
  case DType::name: {                                                                 \
    const type* from = reinterpret_cast<const type*>(x);                              \
    if constexpr (Kind::kind != Kind::complex) {                                      \
      if (p.negate) convert_signed<Map::value>(to, from, n, stride, true, false);     \
      else convert<Map::value>(to, from, n, stride);                                  \
      map_numbers(to, n, p.map);                                                      \
    } else if constexpr (std::is_floating_point_v<Lane>) {                            \
      if (p.map == Map::square) convert<Map::square>(to, from, n, stride);            \
      else if (p.map == Map::cube) convert<Map::cube>(to, from, n, stride);           \
      else if (p.map == Map::magnitude) convert<Map::magnitude>(to, from, n, stride); \
      else convert<Map::negative_magnitude>(to, from, n, stride);                     \
    }                                                                                 \
    break;                                                                            \
  }
    GPUREDUCE_DTYPES(GPUREDUCE_CONVERT)
#undef GPUREDUCE_CONVERT
  }
}

// The elements of `width` neighbouring columns, in memory, and gathered as lanes.
template <Map C, class Lane, class In>
struct Source {
  static constexpr bool kKnown = !std::is_same_v<In, Unknown>;
  // A sum modulo 2^64 is the same for signed and unsigned 64-bit integers.
  using Direct = std::conditional_t<std::is_integral_v<In> && std::is_integral_v<Lane> && sizeof(In) == sizeof(Lane), Lane, In>;
  static constexpr bool kSame = C == Map::value && std::is_same_v<Direct, Lane>;
  static constexpr bool kDirect = C == Map::value && kLoads<Lane, Direct>;

  Source(const Plan& plan, const Task& task)
      : problem(plan.problem),
        size(kKnown ? sizeof(In) : info(problem.in).size),
        input(static_cast<const char*>(problem.input) + task.first_column * problem.column_stride * size),
        width(task.width),
        stride(width == 1 ? problem.reduced.fastest().stride : problem.column_stride),
        pitch(problem.reduced.fastest().stride),
        block(width == 1 || (stride == 1 && pitch == width)),
        in_place(kDirect && stride == 1 && !problem.negate && !problem.conjugate),
        abreast(plan.tile.abreast && in_place && block && problem.reduced.fastest().size * width >= kVector<Lane>),
        dense(width == 1 && stride == 1 && problem.reduced.rank == 1 && problem.rows.fastest().stride == problem.length) {}

  // True if the elements are contiguous numbers T, which the map leaves unchanged.
  template <class T>
  bool is_as() const {
    if (stride != 1 || !block || problem.negate) return false;
    if constexpr (std::is_same_v<T, In>) return true;
    const bool same = (std::is_same_v<T, float> && problem.in == DType::Float) ||
                      (std::is_same_v<T, double> && problem.in == DType::Double) ||
                      (std::is_same_v<T, uint64_t> && problem.in == DType::Long);
    const bool plain = problem.map == Map::value || problem.map == Map::factor;
    return same && plain;
  }

  // The type of elements that are read in place.
  using Loaded = std::conditional_t<kDirect, Direct, Lane>;
  const Loaded* at(int64_t offset) const { return reinterpret_cast<const Loaded*>(input + bytes(offset)); }

  // Writes n elements of each column to to[n][width].
  void gather(Lane* to, int64_t row, int64_t first, int64_t n) const {
    const Dims& dims = problem.reduced;
    const int64_t piece = dims.fastest().size;
    for (Cursor at(dims, first); n > 0;) {
      const char* from = input + bytes(row + at.offset());
      const int64_t pieces = dims.rank > 1 && n >= piece ? min(n / piece, at.whole()) : 0;
      if (pieces > 0) {
        for (int64_t i = 0; i < pieces; ++i, to += piece * width, from += bytes(dims.dims[dims.rank - 2].stride))
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

  // Writes all elements of `rows` rows one after the other, and moves `row` behind them.
  void gather_rows(Lane* to, Cursor& row, int64_t rows) const {
    for (int64_t some; rows > 0; rows -= some, to += some * problem.length * width) {
      some = dense ? min(rows, row.left()) : 1;
      if (dense) gather_piece(to, input + bytes(row.offset()), some * problem.length);
      else gather(to, row.offset(), 0, problem.length);
      row.advance(some);
    }
  }

  // Like gather(), for elements begin + i + d * step, to to[d][i][width], for i < lanes and d < depth. Elements from `end` on
  // become padding.
  void gather_lanes(Lane* to, int64_t row, int64_t begin, int64_t lanes, int64_t step, int64_t depth, int64_t end) const {
    const int64_t together = lanes == step ? depth : 1;  // contiguous rows of lanes
    for (int64_t d = 0; d < depth; d += together, begin += together * step) {
      const int64_t n = min(together * lanes, end - begin), all = together * lanes * width;
      gather(to, row, begin, n);
      pad(to + n * width, all - n * width);
      to += all;
    }
  }

  // Writes n elements of the fastest dim.
  void gather_piece(Lane* to, const char* from, int64_t n) const {
    const int64_t calls = block ? 1 : n, count = block ? n * width : width;
    for (int64_t i = 0; i < calls; ++i, to += count, from += bytes(pitch)) {
      if constexpr (kKnown) {
        const In* x = reinterpret_cast<const In*>(from);
        if (problem.negate || problem.conjugate) convert_signed<C>(to, x, count, stride, problem.negate, problem.conjugate);
        else if (kSame && stride == 1) copy(to, x, count * sizeof(In));
        else convert<C>(to, x, count, stride);
      } else {
        convert_unknown(to, from, count, stride, problem);
      }
    }
  }

  int64_t bytes(int64_t elements) const { return elements * (kKnown ? int64_t{sizeof(In)} : size); }

  const CpuProblem& problem;
  const int64_t size;  // of an element
  const char* const input;
  const int64_t width, stride;  // stride: between neighbours in the tile
  const int64_t pitch;          // from one element of a column to the next
  const bool block;             // one stride walks all columns of all elements of the fastest dim
  const bool in_place;          // neighbours can be summed in place
  const bool abreast;           // Tile::abreast, if pieces are worth it: at least a vector
  const bool dense;             // rows lie one after the other
};
