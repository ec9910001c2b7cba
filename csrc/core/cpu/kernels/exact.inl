// Sums without rounding, for exact sums: a few doubles whose sum is the exact sum of the elements.
//
// For example 2^60 + 3 + 2^-20 - 2^60 in float64. All four are below 2^61 and multiples of 2^-72: too many digits for one
// double. So each x is cut: (x + M) - M, with M = 2^63, is x rounded to a multiple of M * 2^-53 = 2^10, here 2^60, 0, 0 and
// -2^60. A sum of up to 4 such numbers, at most M / 4 each, is exact in a double. What is left, 3 and 2^-20, is at most 2^10.
// It is cut again, with M = 2^12, at multiples of 2^-41, and so on, until the digits left fit. Each level of cuts has a sum: 0,
// 3 + 2^-20 and 0. Most data need one level, which is a plain sum in doubles.

template <class T>
constexpr int kMantissaBits = sizeof(T) == 8            ? 52
                              : sizeof(T) == 4          ? 23
                              : std::is_same_v<T, Half> ? 10
                                                        : 7;
template <class T>
constexpr int kBias = sizeof(T) == 8            ? 1023
                      : std::is_same_v<T, Half> ? 15
                                                : 127;

constexpr int kRowsAtOnce = 8;  // as many streams of memory as are read well

// Finds the bits of the largest magnitude, and the bits of the smallest magnitude but 0, minus 1. If all elements are 0, these
// are 0 and the largest integer.
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
  // kCopy: also copies the elements.
  template <bool kCopy = false>
  inline __attribute__((always_inline)) void add(const T* x, int64_t n, T* copy = nullptr) {
    int64_t i = 0;
    V bits;
    for (; i + kSize <= n; i += kSize) {
      memcpy(&bits, x + i, sizeof(bits));
      if constexpr (kCopy) memcpy(copy + i, &bits, sizeof(bits));
      add(bits);
    }
    if (i == n) return;
    U rest[kSize] = {};
    for (int64_t j = i; j < n; ++j) {
      rest[j - i] = bit_cast<U>(x[j]);
      if constexpr (kCopy) copy[j] = x[j];
    }
    memcpy(&bits, rest, sizeof(bits));
    add(bits);
  }
  // Adds rows of n elements, which begin `pitch` apart. It reads several rows at once. The copies lie one after the other.
  template <bool kCopy>
  void add_rows(const T* x, int64_t pitch, int64_t rows, int64_t n, T* copy) {
    const int64_t whole = n / kSize * kSize;
    int64_t r = 0;
    for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce, x += kRowsAtOnce * pitch, copy += kRowsAtOnce * n) {
      for (int64_t c = 0; c < whole; c += kSize) {
        GPUREDUCE_UNROLL
        for (int i = 0; i < kRowsAtOnce; ++i) {
          V bits;
          memcpy(&bits, x + i * pitch + c, sizeof(bits));
          if constexpr (kCopy) memcpy(copy + i * n + c, &bits, sizeof(bits));
          add(bits);
        }
      }
      if (whole == n) continue;
      for (int64_t i = 0; i < kRowsAtOnce; ++i) add<kCopy>(x + i * pitch + whole, n - whole, copy + i * n + whole);
    }
    for (; r < rows; ++r, x += pitch, copy += n) add<kCopy>(x, n, copy);
  }
  inline __attribute__((always_inline)) void join(U& all_most, U& all_least) const {
    all_most = 0, all_least = static_cast<U>(~U{0});
    for (int i = 0; i < kSize; ++i) {
      all_most = most[i] > all_most ? most[i] : all_most;
      all_least = least[i] < all_least ? least[i] : all_least;
    }
  }
};

// How numbers are cut: each M. The last level has none.
struct Cuts {
  ExactParts parts;
  double at[kExactLevels];
};

inline double power_of_two(int exponent) { return bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52); }

// For sums of up to n numbers, with at most `most_levels`.
template <class T>
Cuts cuts_for(const Magnitudes<T>& magnitudes, int64_t n, int most_levels = kExactLevels) {
  using U = UnsignedOf<sizeof(T)>;
  U most, least;
  magnitudes.join(most, least);
  const int high = most >> kMantissaBits<T>, low = static_cast<U>(least + 1) >> kMantissaBits<T>;
  Cuts cuts;
  cuts.parts = {1, -4096, 4096};  // zeros alone
  if (most == 0) return cuts;
  const int bits = n > 1 ? 64 - __builtin_clzll(n - 1) : 0;  // n <= 2^bits
  int top = (high > 0 ? high : 1) - kBias<T> + 1;
  const int unit = (low > 0 ? low : 1) - kBias<T> - kMantissaBits<T>;
  cuts.parts = {high == 2 * kBias<T> + 1 ? kNotFinite : 1, top, unit};
  if (cuts.parts.levels < 0) return cuts;
  // What is left of each number is at most 2^top, and a multiple of 2^unit.
  for (; top + bits - 53 > unit; top += bits - 53) {
    if (cuts.parts.levels == most_levels || top + bits > 1023) {
      cuts.parts.levels = kTooWide;
      return cuts;
    }
    cuts.at[cuts.parts.levels++ - 1] = power_of_two(top + bits);
  }
  return cuts;
}

// Sums of kCount vectors at once. A sum begins at -0, so that the last level's is -0 if all elements are.
template <int kLevels, int kCount>
struct Levels {
  using V = Vector<double>;
  V cuts[kLevels], sums[kLevels][kCount];

  inline __attribute__((always_inline)) explicit Levels(const Cuts& c) {
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
  // The elements of as many vectors as a register of floats or doubles holds.
  inline __attribute__((always_inline)) void add_loaded(int k, Vector<double> x) { add(k, x); }
  inline __attribute__((always_inline)) void add_loaded(int k, Vector<float> x) {
    Narrow<double, float> half[2];
    memcpy(half, &x, sizeof(x));
    add(k, widened<double, float>(half[0]));
    add(k + 1, widened<double, float>(half[1]));
  }
  // The sum of all vectors' lanes, for each level.
  inline __attribute__((always_inline)) void across(double* to, int64_t step) const {
    GPUREDUCE_UNROLL
    for (int l = 0; l < kLevels; ++l) {
      V sum = sums[l][0];
      GPUREDUCE_UNROLL
      for (int k = 1; k < kCount; ++k) sum += sums[l][k];
      to[l * step] = lanes<kVector<double>>(sum);
    }
  }

 private:
  template <int kSize>
  static inline __attribute__((always_inline)) double lanes(typename VectorOf<double, kSize>::type x) {
    if constexpr (kSize == 2) {
      return x[0] + x[1];
    } else {
      typename VectorOf<double, kSize / 2>::type half[2];
      memcpy(half, &x, sizeof(x));
      return lanes<kSize / 2>(half[0] + half[1]);
    }
  }
};

// Floats and doubles are loaded as doubles, and halves as floats.
template <class T>
using Loaded = std::conditional_t<sizeof(T) == 2, float, double>;

template <int kLevels, class T>
inline __attribute__((always_inline)) void sum_row_exactly(const T* x, int64_t n, const Cuts& cuts, double* to, int64_t step) {
  using In = Loaded<T>;
  constexpr int kSize = kVector<In>, kEach = sizeof(double) / sizeof(In), kCount = kLevels < 3 ? 4 : 2;
  Levels<kLevels, kCount> all(cuts);
  int64_t i = 0;
  for (; i + kCount / kEach * kSize <= n; i += kCount / kEach * kSize) {
    GPUREDUCE_UNROLL
    for (int k = 0; k < kCount / kEach; ++k) all.add_loaded(k * kEach, load<In>(x + i + k * kSize));
  }
  for (; i < n; i += kSize) all.add_loaded(0, load_first<In>(x + i, n - i));
  all.across(to, step);
}

template <int kLevels, class T>
__attribute__((noinline)) void sum_rows_exactly(const T* x, int64_t pitch, int64_t rows, int64_t n, const Cuts& cuts,
                                                double* to) {
  for (int64_t r = 0; r < rows; ++r) sum_row_exactly<kLevels>(x + r * pitch, n, cuts, to + r, rows);
}

template <int kLevels, class T>
__attribute__((noinline)) void sum_columns_exactly(const T* x, int64_t pitch, int64_t rows, int64_t width, const Cuts& cuts,
                                                   double* to, int64_t step) {
  constexpr int kSize = kVector<double>, kCount = kLevels < 3 ? 4 : 2;
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t end = min(rows, first + kRowsAtOnce);
    int64_t c = 0;
    for (; c + kCount * kSize <= width; c += kCount * kSize) {
      Levels<kLevels, kCount> all(cuts);
      for (int64_t r = first; r < end; ++r) {
        GPUREDUCE_UNROLL
        for (int k = 0; k < kCount; ++k) all.add(k, load<double>(x + r * pitch + c + k * kSize));
      }
      GPUREDUCE_UNROLL
      for (int l = 0; l < kLevels; ++l) {
        GPUREDUCE_UNROLL
        for (int k = 0; k < kCount; ++k) {
          double* const sum = to + l * step + c + k * kSize;
          store(sum, first == 0 ? all.sums[l][k] : load<double>(sum) + all.sums[l][k]);
        }
      }
    }
    for (; c < width; c += kSize) {
      Levels<kLevels, 1> all(cuts);
      for (int64_t r = first; r < end; ++r) all.add(0, load_first<double>(x + r * pitch + c, width - c));
      for (int l = 0; l < kLevels; ++l) {
        for (int64_t k = 0; k < min(kSize, width - c); ++k) {
          double& sum = to[l * step + c + k];
          sum = first == 0 ? all.sums[l][0][k] : sum + all.sums[l][0][k];
        }
      }
    }
  }
}

// Calls f with the number of levels as a compile-time constant, if there are doubles.
template <int kMost, int kLevels = 1, class F>
inline __attribute__((always_inline)) void with_levels(int levels, F f) {
  if (levels == kLevels) f(std::integral_constant<int, kLevels>());
  else if constexpr (kLevels < kMost) with_levels<kMost, kLevels + 1>(levels, f);
}

template <class T>
ExactParts exact_rows(const T* x, int64_t pitch, int64_t rows, int64_t n, double* sums) {
  Magnitudes<T> magnitudes;
  if (pitch == n) magnitudes.add(x, rows * n);
  else
    for (int64_t r = 0; r < rows; ++r) magnitudes.add(x + r * pitch, n);
  const Cuts cuts = cuts_for(magnitudes, n);
  with_levels<kExactLevels>(cuts.parts.levels,
                            [&](auto levels) { sum_rows_exactly<levels.value>(x, pitch, rows, n, cuts, sums); });
  return cuts.parts;
}

template <class T>
ExactParts exact_row(const void* x, int64_t n, double* sums) {
  constexpr int kMost = sizeof(T) == 2 ? 2 : kExactLevels;  // wider rows of halves are rare: they are converted
  const T* const elements = static_cast<const T*>(x);
  Magnitudes<T> magnitudes;
  magnitudes.add(elements, n);
  const Cuts cuts = cuts_for(magnitudes, n, kMost);
  with_levels<kMost>(cuts.parts.levels, [&](auto levels) { sum_rows_exactly<levels.value>(elements, n, 1, n, cuts, sums); });
  return cuts.parts;
}

template <class T>
ExactRow exact_row_if_loaded() {
  if constexpr (kLoads<float, T>) return exact_row<T>;
  else return nullptr;
}

// Of a few columns several rows are summed side by side, as if they were one. So there is nothing between rows, or they are
// copied, as are many rows that may lie too far apart for the caches.
template <class T>
ExactParts exact_columns(const T* x, int64_t pitch, int64_t rows, int64_t width, T* copy, double* sums) {
  constexpr int64_t kManyRows = 16;
  const int64_t side = max<int64_t>(1, min(rows, kExactWidth / width)), all = side * width;
  const int64_t full = rows / side, rest = rows % side * width;
  Magnitudes<T> magnitudes;
  if (pitch == width) {
    magnitudes.add(x, rows * width);
  } else if (side == 1 && rows <= kManyRows) {
    magnitudes.template add_rows<false>(x, pitch, rows, width, copy);
  } else {
    magnitudes.template add_rows<true>(x, pitch, rows, width, copy);
    x = copy;
    pitch = width;
  }
  const Cuts cuts = cuts_for(magnitudes, rows);
  pitch *= side;
  with_levels<kExactLevels>(cuts.parts.levels, [&](auto levels) {
    sum_columns_exactly<levels.value>(x, pitch, full + 1, rest, cuts, sums, all);
    sum_columns_exactly<levels.value>(x + rest, pitch, full, all - rest, cuts, sums + rest, all);
    if (side == 1) return;
    for (int l = 0; l < levels.value; ++l) {
      double* const to = sums + l * width;  // not behind what is read next
      for (int64_t c = 0; c < width; ++c) to[c] = sums[l * all + c];
      for (int64_t i = 1; i < side; ++i)
        for (int64_t c = 0; c < width; ++c) to[c] += sums[l * all + i * width + c];
    }
  });
  return cuts.parts;
}

template <class T>
void convert_numbers(const CpuProblem& p, const void* x, int64_t n, int64_t stride, T* to) {
  convert_unknown(to, static_cast<const char*>(x), n, stride, p);
}

// --- products -------------------------------------------------------------------------------------------------------------

#if defined(__ARM_FEATURE_FMA)
constexpr bool kFuses = true;
#else
constexpr bool kFuses = GPUREDUCE_VECTOR_BYTES >= 32;
#endif

// A product of two doubles is p + r, where p is the product rounded and r = fma(x, y, -p), if p is finite and no bit of r is
// below 2^-1074. The last bit of x * y is at least |p| * 2^-106. So p is 0 for a factor of 0, or at least 2^-968.
bool are_two_doubles(const double* x, const double* y, int64_t n) {
  constexpr double kLeast = 0x1p-968, kMost = 0x1.fffffffffffffp1023;
  int64_t others = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double magnitude = __builtin_fabs(x[i] * y[i]), zero = x[i] == 0 ? x[i] : y[i], least = zero == 0 ? 0 : kLeast;
    const int64_t large = magnitude <= kMost ? 0 : 1, small = magnitude >= least ? 0 : 1;  // both of NaN
    others |= large | small;
  }
  return others == 0;
}
void split_products(double* __restrict x, double* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double p = x[i] * y[i], rest = __builtin_fma(x[i], y[i], -p);
    x[i] = p;
    y[i] = rest == 0 ? -0.0 : rest;
  }
}
bool exact_products(double* x, double* y, int64_t pitch, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r)
    if (!are_two_doubles(x + r * pitch, y + r * pitch, n)) return false;
  for (int64_t r = 0; r < rows; ++r) split_products(x + r * pitch, y + r * pitch, n);
  return true;
}
