// Sums without rounding, for exact sums: a few doubles whose sum is the exact sum of the elements.
//
// For example 2^60 + 3 + 2^-20 - 2^60 in float64. All four are below 2^61 and multiples of 2^-72: too many digits for one
// double. So each x is cut: (x + M) - M, with M = 2^63, is x rounded to a multiple of M * 2^-53 = 2^10, here 2^60, 0, 0 and
// -2^60. A sum of up to 4 such numbers, at most M / 4 each, is exact in a double. What is left, 3 and 2^-20, is at most 2^10.
// It is cut again, with M = 2^12, at multiples of 2^-41, and so on, until the digits left fit. Each level of cuts has a sum: 0,
// 3 + 2^-20 and 0. Most data need one level, which is a plain sum in doubles.

// The bits of the largest magnitude, and those of the smallest one that is not 0, less 1. Zeros alone: 0 and the largest
// number.
template <class T>
struct Magnitudes {
  using U = UnsignedOf<sizeof(T)>;
  static constexpr int kSize = GPUREDUCE_VECTOR_BYTES / sizeof(T);
  using V = typename VectorOf<U, kSize>::type;
  static constexpr U kMask = static_cast<U>(~U{0}) >> 1;

  V most = V{}, least = ~V{};

  inline __attribute__((always_inline)) void add(V bits) {
    const V x = bits & kMask, y = x - 1;
    most = most > x ? most : x;
    least = least < y ? least : y;
  }
  inline __attribute__((always_inline)) void add(const T* x, int64_t n) {
    int64_t i = 0;
    V bits;
    for (; i + kSize <= n; i += kSize) {
      memcpy(&bits, x + i, sizeof(bits));
      add(bits);
    }
    if (i == n) return;
    bits = V{};
    memcpy(&bits, x + i, (n - i) * sizeof(T));
    add(bits);
  }
  inline __attribute__((always_inline)) void join(U& all_most, U& all_least) const {
    all_most = 0, all_least = ~U{0};
    for (int i = 0; i < kSize; ++i) {
      all_most = most[i] > all_most ? most[i] : all_most;
      all_least = least[i] < all_least ? least[i] : all_least;
    }
  }
};

// How numbers are cut: each M, and the number of levels, the last of which has none. Or kNotFinite or kTooWide.
struct Cuts {
  int levels;
  double at[kExactLevels];
};

inline double power_of_two(int exponent) { return bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52); }

// For sums of up to n numbers.
template <class T>
Cuts cuts_for(const Magnitudes<T>& magnitudes, int64_t n) {
  using U = UnsignedOf<sizeof(T)>;
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52, kBias = sizeof(T) == 4 ? 127 : 1023;
  U most, least;
  magnitudes.join(most, least);
  const int high = static_cast<int>(most >> kMantissa), low = static_cast<int>((least + 1) >> kMantissa);
  Cuts cuts;
  cuts.levels = 1;
  if (most == 0) return cuts;
  if (high == 2 * kBias + 1) return {kNotFinite, {}};
  int bits = 0;  // n <= 2^bits
  while ((int64_t{1} << bits) < n) ++bits;
  int top = high - kBias + 1;  // all rests are at most 2^top, and multiples of 2^unit
  const int unit = (low > 0 ? low - 1 : 0) + 1 - kBias - kMantissa;
  for (; top + bits - 53 > unit; top += bits - 53) {
    if (cuts.levels == kExactLevels || top + bits > 1023) return {kTooWide, {}};
    cuts.at[cuts.levels - 1] = power_of_two(top + bits);
    ++cuts.levels;
  }
  return cuts;
}

// Sums of up to kHeld vectors at once. A sum begins at -0, so that the last level's is -0 if all elements are.
template <int kLevels, int kCount>
struct Levels {
  using V = Vector<double>;
  V cuts[kLevels], sums[kLevels][kCount];

  explicit Levels(const Cuts& c) {
    GPUREDUCE_UNROLL
    for (int l = 0; l < kLevels; ++l) {
      if (l + 1 < kLevels) cuts[l] = c.at[l] - V{};
      GPUREDUCE_UNROLL
      for (int k = 0; k < kCount; ++k) sums[l][k] = -0.0 - V{};
    }
  }
  inline __attribute__((always_inline)) void add(int k, V x) {
    GPUREDUCE_UNROLL
    for (int l = 0; l + 1 < kLevels; ++l) {
      const V cut = (x + cuts[l]) - cuts[l];
      sums[l][k] += cut;
      x -= cut;
    }
    sums[kLevels - 1][k] += x;
  }
};

template <int kLevels, class T>
__attribute__((noinline)) void sum_row_exactly(const T* x, int64_t n, const Cuts& cuts, double* to) {
  constexpr int kSize = kVector<double>, kCount = kLevels < 3 ? 4 : 2;
  Levels<kLevels, kCount> all(cuts);
  int64_t i = 0;
  for (; i + kCount * kSize <= n; i += kCount * kSize) {
    GPUREDUCE_UNROLL
    for (int k = 0; k < kCount; ++k) all.add(k, load<double>(x + i + k * kSize));
  }
  for (; i < n; i += kSize) all.add(0, load_first<double>(x + i, n - i));
  for (int l = 0; l < kLevels; ++l) {
    Vector<double> sum = all.sums[l][0];
    for (int k = 1; k < kCount; ++k) sum += all.sums[l][k];
    to[l] = sum[0];
    for (int k = 1; k < kSize; ++k) to[l] += sum[k];
  }
}

template <int kLevels, class T>
__attribute__((noinline)) void sum_columns_exactly(const T* x, int64_t pitch, int64_t rows, int64_t width, const Cuts& cuts,
                                                   double* to) {
  constexpr int kSize = kVector<double>, kCount = kLevels < 3 ? 4 : 2;
  int64_t c = 0;
  for (; c + kCount * kSize <= width; c += kCount * kSize) {
    Levels<kLevels, kCount> all(cuts);
    for (int64_t r = 0; r < rows; ++r) {
      GPUREDUCE_UNROLL
      for (int k = 0; k < kCount; ++k) all.add(k, load<double>(x + r * pitch + c + k * kSize));
    }
    for (int l = 0; l < kLevels; ++l)
      for (int k = 0; k < kCount; ++k) store(to + l * width + c + k * kSize, all.sums[l][k]);
  }
  for (; c < width; c += kSize) {
    Levels<kLevels, 1> all(cuts);
    for (int64_t r = 0; r < rows; ++r) all.add(0, load_first<double>(x + r * pitch + c, width - c));
    for (int l = 0; l < kLevels; ++l)
      for (int64_t k = 0; k < min(kSize, width - c); ++k) to[l * width + c + k] = all.sums[l][0][k];
  }
}

// Calls f with the number of levels as a compile-time constant.
template <int kLevels, class F>
inline __attribute__((always_inline)) void with_levels(int levels, F f) {
  if (levels == kLevels) f(std::integral_constant<int, kLevels>());
  else if constexpr (kLevels < kExactLevels) with_levels<kLevels + 1>(levels, f);
}

// ExactRow and ExactColumns of kernels.h.
template <class T>
int exact_row(const T* x, int64_t n, double* sums) {
  Magnitudes<T> magnitudes;
  magnitudes.add(x, n);
  const Cuts cuts = cuts_for(magnitudes, n);
  with_levels<1>(cuts.levels, [&](auto levels) { sum_row_exactly<levels.value>(x, n, cuts, sums); });
  return cuts.levels;
}

template <class T>
int exact_columns(const T* x, int64_t pitch, int64_t rows, int64_t width, double* sums) {
  Magnitudes<T> magnitudes;
  for (int64_t r = 0; r < rows; ++r) magnitudes.add(x + r * pitch, width);
  const Cuts cuts = cuts_for(magnitudes, rows);
  with_levels<1>(cuts.levels, [&](auto levels) { sum_columns_exactly<levels.value>(x, pitch, rows, width, cuts, sums); });
  return cuts.levels;
}

template <class T>
void convert_numbers(const CpuProblem& p, const void* x, int64_t n, int64_t stride, T* to) {
  convert_unknown(to, static_cast<const char*>(x), n, stride, p);
}
