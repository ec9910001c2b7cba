// Joins of leaves in the contract's order, nearest neighbours first. One or two columns are joined by shuffles within vectors,
// more columns by joins of whole vectors. join_tile() joins a tile to one leaf per row. Acc says how numbers are joined: plain
// numbers by addition, a Largest or Product by its +.

// Joins vectors of numbers as the + of the accumulator does.
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>, class V>
inline __attribute__((always_inline)) V join_numbers(T, V a, V b) {
  return a + b;
}
template <class T>
inline __attribute__((always_inline)) Vector<T> join_numbers(Largest<T>, Vector<T> a, Vector<T> b) {
  const auto first = (a > b) | (a != a), equal = a == b;
  const auto x = reinterpret_cast<decltype(first)>(a), y = reinterpret_cast<decltype(first)>(b);
  return reinterpret_cast<Vector<T>>((x & y & equal) | (((x & first) | (y & ~first)) & ~equal));
}
template <class T>
inline __attribute__((always_inline)) Vector<T> join_numbers(Product<T>, Vector<T> a, Vector<T> b) {
  return a * b;
}

// Joins two numbers.
template <class Acc>
inline __attribute__((always_inline)) Number<Acc> join_number(Number<Acc> a, Number<Acc> b) {
  return number(Acc{a} + Acc{b});
}
template <class Acc>
using Numbers = Vector<Number<Acc>>;

// Joins pairs: lane p * kWidth + w of the result joins lane 2p * kWidth + w of a followed by b with the lane kWidth further on.
template <int kWidth, class Acc, int... I>
inline __attribute__((always_inline)) Numbers<Acc> join_two(Numbers<Acc> a, Numbers<Acc> b, std::integer_sequence<int, I...>) {
  return join_numbers(Acc{}, select<Number<Acc>, (I / kWidth * 2 * kWidth + I % kWidth)...>(a, b),
                      select<Number<Acc>, (I / kWidth * 2 * kWidth + kWidth + I % kWidth)...>(a, b));
}

// Two levels of join_two().
template <int kWidth, class Acc>
inline __attribute__((always_inline)) Numbers<Acc> join_four(Numbers<Acc> a, Numbers<Acc> b, Numbers<Acc> c, Numbers<Acc> d) {
  constexpr std::make_integer_sequence<int, kVector<Acc>> lanes{};
  return join_two<kWidth, Acc>(join_two<kWidth, Acc>(a, b, lanes), join_two<kWidth, Acc>(c, d, lanes), lanes);
}

// Joins neighbouring units of kUnit lanes, a multiple of eight bytes: units of a go to even units of the result, units of b to
// odd ones. That takes a blend and only one shuffle, since most processors do one shuffle per cycle.
template <int kUnit, class Acc, int... I>
inline __attribute__((always_inline)) Numbers<Acc> join_units(Numbers<Acc> a, Numbers<Acc> b,
                                                              std::integer_sequence<int, I...>) {
  constexpr int kPairs = kUnit * sizeof(Acc) / 8, kAll = kVector<double>;
  const auto x = reinterpret_cast<Vector<double>>(a), y = reinterpret_cast<Vector<double>>(b);
#if GPUREDUCE_VECTOR_BYTES == 64
  const auto straight = reinterpret_cast<Vector<double>>(_mm512_mask_mov_pd(x, ((I / kPairs % 2 << I) | ...), y));
#else
  const auto straight = select<double, (I / kPairs % 2 * kAll + I)...>(x, y);
#endif
  const auto crossed = select<double, (I / kPairs % 2 ? kAll + I - kPairs : I + kPairs)...>(x, y);
  return join_numbers(Acc{}, reinterpret_cast<Numbers<Acc>>(straight), reinterpret_cast<Numbers<Acc>>(crossed));
}

// The same for lanes of four bytes. Each run of four has a's results first, then b's.
template <class Acc, int... I>
inline __attribute__((always_inline)) Numbers<Acc> join_lanes(Numbers<Acc> a, Numbers<Acc> b,
                                                              std::integer_sequence<int, I...>) {
  constexpr auto from = [](int i) { return i % 4 / 2 * kVector<Acc> + i / 4 * 4 + i % 2 * 2; };
  return join_numbers(Acc{}, select<Number<Acc>, from(I)...>(a, b), select<Number<Acc>, (from(I) + 1)...>(a, b));
}

// Joins kVector / kWidth vectors to one, in order: each lane is the sum of kVector / kWidth neighbouring leaves.
template <int kWidth, class Acc, int kCount = kVector<Acc> / kWidth>
inline __attribute__((always_inline)) Numbers<Acc> join_vectors(const Numbers<Acc>* v) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    constexpr int kUnit = kCount / 2 * kWidth;
    const Numbers<Acc> a = join_vectors<kWidth, Acc, kCount / 2>(v), b = join_vectors<kWidth, Acc, kCount / 2>(v + kCount / 2);
    // Two joins within a run bring lanes of four bytes to the same places as two joins of units.
    if constexpr (kWidth * sizeof(Acc) < 8 && kCount <= 4)
      return join_lanes<Acc>(a, b, std::make_integer_sequence<int, kVector<Acc>>{});
    else return join_units<kUnit, Acc>(a, b, std::make_integer_sequence<int, kVector<double>>{});
  }
}

// The same for kCount vectors; returns the end of the output.
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

// --- joins of a tile --------------------------------------------------------------------------------------------------------

// out[p][width] = in[2p][width] joined to in[2p + 1][width]
template <class Acc>
void join_pairs(Number<Acc>* __restrict out, const Number<Acc>* __restrict in, int64_t pairs, int64_t width) {
  constexpr int kSize = kVector<Acc>;
  constexpr std::make_integer_sequence<int, kSize> lanes{};
  // A vector holds several pairs of one or two columns; the compiler does not vectorise that.
  for (; width <= 2 && pairs * width >= kSize; pairs -= kSize / width, in += 2 * kSize, out += kSize) {
    const Numbers<Acc> a = load<Number<Acc>>(in), b = load<Number<Acc>>(in + kSize);
    store(out, width == 1 ? join_two<1, Acc>(a, b, lanes) : join_two<2, Acc>(a, b, lanes));
  }
  for (int64_t p = 0; p < pairs; ++p, in += 2 * width, out += width) {
    for (int64_t w = 0; w < width; ++w) out[w] = join_number<Acc>(in[w], in[width + w]);
  }
}

// Joins two levels at once, for one or two columns; n counts all columns.
template <class Acc, class In>
void join_fours(Number<Acc>* __restrict out, const In* __restrict in, int64_t n, int64_t width) {
  using T = Number<Acc>;
  constexpr int kSize = kVector<Acc>;
  for (; n >= 4 * kSize; n -= 4 * kSize, in += 4 * kSize, out += kSize) {
    const Numbers<Acc> a = load<T>(in), b = load<T>(in + kSize), c = load<T>(in + 2 * kSize), d = load<T>(in + 3 * kSize);
    store(out, width == 1 ? join_four<1, Acc>(a, b, c, d) : join_four<2, Acc>(a, b, c, d));
  }
  const auto at = [&](int64_t i) __attribute__((always_inline)) { return lane<T, Map::value>(in[i * width]); };
  for (; n > 0; n -= 4 * width, in += 3 * width) {
    for (int64_t w = 0; w < width; ++w, ++in, ++out)
      *out = join_number<Acc>(join_number<Acc>(at(0), at(1)), join_number<Acc>(at(2), at(3)));
  }
}

// Joins n lanes, as many leaves at once as a vector holds. Also writes some lanes of `out` behind the joined ones.
template <int kWidth, class Acc>
void join_whole(Number<Acc>* __restrict out, const Number<Acc>* __restrict in, int64_t n) {
  constexpr int kSize = kVector<Acc>, kCount = kSize / kWidth;
  for (; n > 0; n -= kCount * kSize, in += kCount * kSize, out += kSize) {
    Numbers<Acc> v[kCount];
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) v[i] = i == 0 || i * kSize < n ? load<Number<Acc>>(in + i * kSize) : v[0];
    store(out, join_vectors<kWidth, Acc>(v));
  }
}

// Joins as many levels of in[rows][leaves][width] at once as is fastest; returns the number of leaves left per row.
template <class Acc>
int64_t join_levels(Number<Acc>* out, const Number<Acc>* in, int64_t rows, int64_t leaves, int64_t width) {
  const int64_t whole = kVector<Acc> / width, n = rows * leaves * width;
  if (width <= 2 && leaves >= whole && whole >= 4) {
    width == 1 ? join_whole<1, Acc>(out, in, n) : join_whole<2, Acc>(out, in, n);
    return leaves / whole;
  }
  if (width <= 2 && leaves >= 4) {
    join_fours<Acc>(out, in, n, width);
    return leaves / 4;
  }
  if constexpr (std::is_arithmetic_v<Acc>) {
    if (leaves >= 4 && width >= kVector<Acc>) {
      join_columns(out, in, rows * leaves, width, width, 0, 1);
      return leaves / 4;
    }
  }
  join_pairs<Acc>(out, in, rows * leaves / 2, width);
  return leaves / 2;
}

// Joins tile[rows][leaves][width] to one leaf per row, alternating between two buffers; returns the one with the result.
template <class Acc>
Number<Acc>* join_tile(Number<Acc>* tile, Number<Acc>* other, int64_t rows, int64_t leaves, int64_t width) {
  while (leaves > 1) {
    leaves = join_levels<Acc>(other, tile, rows, leaves, width);
    Number<Acc>* joined = other;
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

// Sums that arrive one by one, each of `size` numbers. They are joined like the bits of a counter: level k of the stack holds
// the sum of 2^k of them that waits for its right neighbour.
template <class Acc>
class Counter {
 public:
  Counter(Acc* stack, int64_t size) : stack_(stack), size_(size) {}

  // Takes a sum that others follow, and overwrites it.
  void add(Acc* sum) {
    int level = 0;
    for (; count_ >> level & 1; ++level) join_left(sum, stack_ + level * size_, size_);
    memcpy(stack_ + level * size_, sum, size_ * sizeof(Acc));
    ++count_;
  }
  // Takes the last sum, which becomes the sum of all. Sums that still wait are on its left.
  void finish(Acc* sum) const {
    for (int level = 0; count_ >> level; ++level)
      if (count_ >> level & 1) join_left(sum, stack_ + level * size_, size_);
  }

 private:
  Acc* const stack_;
  const int64_t size_;
  int64_t count_ = 0;
};
