// Floats that are added exactly, a tile of a thread at a time: as integers where the tile's exponents allow it, and otherwise
// bit by bit into the digits of a fixed-point number.
//
// For example the float32 elements 1.5, -0.25 and 3. Their exponents lie in a *window* of 31 exponents, from 2^-27 to 2^3. The
// last bit of a number of 2^-27 is 2^-50, so each element times 2^50 is an integer below 2^54, and 256 of them add up to less
// than 2^62. The thread adds 1.5 * 2^50 - 0.25 * 2^50 + 3 * 2^50 = 4.25 * 2^50 in an int64. Bit 0 of the fixed-point number
// counts 2^-149, so the int64 is added to it from bit 99 on: that is from bit 3 of digit 3. A tile that also has 1e30 or 1e-30
// fits no window: each of its elements is added to the digit where it begins.
#pragma once

#include "../core/cuda/load/vectors.cuh"
#include "../core/numeric/exact.h"
#include "../core/plan/exact.h"

namespace gpureduce::cuda {

// Additions to one integer or digit before it is flushed.
constexpr int kLogExactAdds = 8, kExactAdds = 1 << kLogExactAdds;

// How elements of a dtype are added. An element's *exponent* is its biased one, in its own format. kLeast, kMost: the exponents
// of windows. kBit: what to add to an exponent to get the bit of the fixed-point number that its last mantissa bit counts.
// width(): the exponents of a window in which 1 << log_adds elements can be added.
template <class T>
struct ExactFormat;
template <>
struct ExactFormat<float> {
  using Range = exact::NarrowRange;
  static constexpr int kMantissaBits = 23, kLeast = 23, kMost = 254, kBit = -1;  // below 23 the scale would be infinite
  __host__ __device__ static constexpr int width(int log_adds) { return 39 - log_adds; }
  __device__ static constexpr int scale(int base) { return 150 - base; }
};
template <>
struct ExactFormat<BFloat16> {
  using Range = exact::NarrowRange;
  static constexpr int kMantissaBits = 7, kLeast = 7, kMost = 254, kBit = 15;
  __host__ __device__ static constexpr int width(int log_adds) { return 55 - log_adds; }
  __device__ static constexpr int scale(int base) { return 134 - base; }
};
template <>
struct ExactFormat<Half> {  // one window has all finite numbers: as multiples of 2^-24 they are below 2^40
  using Range = exact::NarrowRange;
  static constexpr int kMantissaBits = 10, kLeast = 0, kMost = 30, kBit = 125;
  __host__ __device__ static constexpr int width(int) { return 64; }
  __device__ static constexpr int scale(int) { return 24; }
};
template <>
struct ExactFormat<double> {  // an integer of high and low bits, with kHigh low ones
  using Range = exact::WideRange;
  static constexpr int kMantissaBits = 52, kLeast = 1, kMost = 2046, kBit = -1;
  __host__ __device__ static constexpr int low_bits(int log_adds) { return 62 - log_adds; }
  __host__ __device__ static constexpr int width(int log_adds) { return 72 - 2 * log_adds; }
};

__device__ __forceinline__ float power_of_two(int exponent, bool negative) {
  return bit_cast<float>(static_cast<uint32_t>(127 + exponent) << 23 | static_cast<uint32_t>(negative) << 31);
}
__device__ __forceinline__ double wide_power_of_two(int exponent, bool negative) {
  return bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52 | static_cast<uint64_t>(negative) << 63);
}

// The highest and the lowest exponent of elements that are not 0. An element's magnitude with the sign bit set is, as a signed
// integer, ordered as the magnitude; minus 1, zeros become the largest integer. So the lowest exponent is one too low for
// powers of two, which only makes a window wider than it need be. Two bytes: both elements of a word at once.
template <class T>
struct Exponents {
  static constexpr uint32_t kTop = sizeof(T) == 2 ? 0x80008000u : 0x80000000u;
  uint32_t high = kTop, low = ~kTop;

  template <int V>
  __device__ __forceinline__ void add(const Vector<T, V>& x) {
#pragma unroll
    for (int w = 0; w < static_cast<int>(V * sizeof(T) / 4); w += sizeof(T) == 8 ? 2 : 1) {
      if constexpr (sizeof(T) == 2) {
        const uint32_t n = x.word(w) | kTop;
        high = __vmaxs2(high, n);
        low = __viaddmin_s16x2(n, ~0u, low);
      } else {
        uint32_t n = (sizeof(T) == 8 ? x.word(w + 1) : x.word(w)) | kTop;
        if constexpr (sizeof(T) == 8) n |= x.word(w) != 0;  // a tiny number is no zero
        high = static_cast<uint32_t>(max(static_cast<int>(high), static_cast<int>(n)));
        low = static_cast<uint32_t>(min(static_cast<int>(n - 1), static_cast<int>(low)));
      }
    }
  }
  __device__ __forceinline__ int highest() const {
    if constexpr (sizeof(T) == 2) {
      const int n = max(static_cast<int>(static_cast<int16_t>(high)), static_cast<int>(high) >> 16);
      return (n + 0x8000) >> ExactFormat<T>::kMantissaBits;
    } else {
      return static_cast<int>((high ^ kTop) >> (ExactFormat<T>::kMantissaBits % 32));
    }
  }
  __device__ __forceinline__ int lowest() const {  // above all exponents if all elements are 0
    if constexpr (sizeof(T) == 2) {
      const int n = min(static_cast<int>(static_cast<int16_t>(low)), static_cast<int>(low) >> 16);
      return (n + 0x8000) >> ExactFormat<T>::kMantissaBits;
    } else {
      return static_cast<int>((low ^ kTop) >> (ExactFormat<T>::kMantissaBits % 32));
    }
  }
};

// A sum of elements in a window.
template <class T>
struct WindowSum {
  int64_t low = 0;
  __device__ __forceinline__ bool zero() const { return low == 0; }
  __device__ __forceinline__ WindowSum& operator+=(WindowSum other) {
    low += other.low;
    return *this;
  }
};
template <>
struct WindowSum<double> {
  int64_t low = 0, high = 0;
  __device__ __forceinline__ bool zero() const { return low == 0 && high == 0; }
  __device__ __forceinline__ WindowSum& operator+=(WindowSum other) {
    low += other.low;
    high += other.high;
    return *this;
  }
};

// Adds the sum of the thread `step` lanes away. All threads of the warp must call it.
template <class T>
__device__ __forceinline__ void add_other_lane(WindowSum<T>& sum, int step) {
  WindowSum<T> more;
  more.low = __shfl_xor_sync(~0u, sum.low, step);
  if constexpr (sizeof(T) == 8) more.high = __shfl_xor_sync(~0u, sum.high, step);
  sum += more;
}

// The exponents from base to top. Nothing is in it before it is placed.
template <class T>
struct Window {
  using Format = ExactFormat<T>;
  int base = 0, top = -1;
  std::conditional_t<std::is_same_v<T, double>, double, float> scale = 0;

  __device__ __forceinline__ bool has(int highest, int lowest) const { return highest <= top && lowest >= base; }

  // Moves the window to these exponents, or returns false. There is a little room above them: the next tiles are similar.
  __device__ __forceinline__ bool place(int highest, int lowest, int log_adds, bool negate) {
    constexpr int kRoom = 2;
    const int width = Format::width(log_adds);
    if (highest > Format::kMost || lowest < Format::kLeast || highest - lowest >= width) return false;
    base = max(min(min(highest + kRoom, Format::kMost) - width + 1, lowest), Format::kLeast);
    top = min(base + width - 1, Format::kMost);
    if constexpr (std::is_same_v<T, double>) scale = wide_power_of_two(1075 - Format::low_bits(log_adds) - base, negate);
    else scale = power_of_two(Format::scale(base), negate);
    return true;
  }
  __device__ __forceinline__ int bit() const { return base + Format::kBit; }

  __device__ __forceinline__ void add(WindowSum<T>& sum, T x, int log_adds) const {
    if constexpr (std::is_same_v<T, double>) {
      const double scaled = x * scale, whole = trunc(scaled);
      sum.high += __double2ll_rz(scaled);
      sum.low += __double2ll_rn((scaled - whole) * wide_power_of_two(Format::low_bits(log_adds), false));
    } else {
      sum.low += __float2ll_rn(value(x) * scale);
    }
  }

  // Calls add(n, bit) for each integer of a sum. It counts bit `bit` of a fixed-point number.
  template <class Add>
  __device__ __forceinline__ void split(WindowSum<T> sum, int log_adds, Add add) const {
    add(sum.low, bit());
    if constexpr (std::is_same_v<T, double>) add(sum.high, bit() + Format::low_bits(log_adds));
  }
};

// Adds n * 2^bit: calls add(i, word) for each digit i that a word of it is added to.
template <class Add>
__device__ __forceinline__ void add_by_words(int64_t n, int bit, Add add) {
  const int first = bit / 32, shift = bit % 32;
  const uint64_t low = (static_cast<uint64_t>(n) & 0xffffffffu) << shift;
  const int64_t high = (n >> 32) * (int64_t{1} << shift);
  add(first, static_cast<int64_t>(low & 0xffffffffu));
  add(first + 1, static_cast<int64_t>(low >> 32) + (high & 0xffffffff));
  add(first + 2, high >> 32);
}

// The digits of a thread, in shared memory. kRowDigits: those that elements begin or end in.
template <class Range>
constexpr int kRowDigits = Range::kDigits == 10 ? 8 : 65;
struct Digits {
  int64_t* first;
  int step;
  __device__ __forceinline__ int64_t& operator[](int i) const { return first[i * step]; }
  __device__ __forceinline__ void clear(int count) const {
#pragma unroll 4
    for (int i = 0; i < count; ++i) (*this)[i] = 0;
  }
  // Brings all but the last into [0, 2^32).
  __device__ __forceinline__ void carry(int count) const {
    int64_t over = 0;
#pragma unroll 2
    for (int i = 0; i + 1 < count; ++i) {
      const int64_t digit = (*this)[i] + over;
      (*this)[i] = digit & 0xffffffff;
      over = digit >> 32;
    }
    (*this)[count - 1] += over;
  }
  // Adds n * 2^bit.
  __device__ __forceinline__ void add(int64_t n, int bit) const {
    add_by_words(n, bit, [&](int i, int64_t word) { (*this)[i] += word; });
  }
};

struct ExactSigns { bool negate, nan_is_zero; };

// Adds an element to a thread's digits, whatever it is. Without branches: infinities and NaN are added as 0.
__device__ __forceinline__ uint32_t seen_of(bool negative, bool nan, ExactSigns signs) {
  return nan ? signs.nan_is_zero ? 0 : exact::kNaN : negative ? exact::kMinusInfinity : exact::kPlusInfinity;
}
// The addend is a product with -2^n, since 2^31 is no int: one instruction multiplies and adds.
__device__ __forceinline__ void add_element(const Digits& digits, uint32_t& seen, float x, ExactSigns signs) {
  constexpr uint32_t kOne = 1u << 23, kInfinity = 0xff * kOne;  // of an exponent
  const uint32_t bits = bit_cast<uint32_t>(x) ^ static_cast<uint32_t>(signs.negate) << 31, magnitude = bits & 0x7fffffff;
  const uint32_t bit = static_cast<uint32_t>(max(static_cast<int>(magnitude - kOne), 0)) >> 23;
  const uint32_t mantissa = magnitude >= kInfinity ? 0 : magnitude - bit * kOne;
  if (magnitude >= kInfinity) seen |= seen_of(bits >> 31, magnitude > kInfinity, signs);
  const int opposite = static_cast<int>(~bits) >> 31;  // -1 for positive numbers
  int64_t* const digit =
      reinterpret_cast<int64_t*>(reinterpret_cast<char*>(digits.first) + (bit & ~31u) * (digits.step * sizeof(int64_t) / 32));
  *digit += int64_t{static_cast<int>((mantissa ^ opposite) - opposite)} * static_cast<int>(__funnelshift_l(0u, ~0u, bit));
}
__device__ __forceinline__ void add_element(const Digits& digits, uint32_t& seen, double x, ExactSigns signs) {
  const uint64_t bits = bit_cast<uint64_t>(x) ^ static_cast<uint64_t>(signs.negate) << 63;
  const uint32_t exponent = static_cast<uint32_t>(bits >> 52) & 0x7ff, bit = max(exponent, 1u) - 1;
  const uint64_t fraction = bits & ((1ull << 52) - 1);
  if (exponent == 0x7ff) seen |= seen_of(bits >> 63, fraction != 0, signs);
  const uint64_t mantissa = exponent == 0x7ff ? 0 : exponent ? fraction | 1ull << 52 : fraction;
  const uint64_t low = (mantissa & 0xffffffffu) << bit % 32, high = (low >> 32) + (mantissa >> 32 << bit % 32);
  const int64_t sign = static_cast<int64_t>(bits) >> 63;
  int64_t& first = digits[bit / 32];
  int64_t& second = digits[bit / 32 + 1];
  const int64_t sums[2] = {first + ((static_cast<int64_t>(low & 0xffffffffu) ^ sign) - sign),
                           second + ((static_cast<int64_t>(high) ^ sign) - sign)};
  first = sums[0];
  second = sums[1];
}

// Adds a tile element by element. The loop's body is short: the next vectors move into the first ones' registers. digits_of(j):
// where element j of a vector goes, seen[j % C].
template <int K, int V, class T, class DigitsOf, int C>
__device__ __forceinline__ void add_elements(Vector<T, V> (&x)[K], DigitsOf digits_of, uint32_t (&seen)[C], ExactSigns signs) {
  constexpr int kOnce = V < 8 ? 2 : 1;
#pragma unroll 1
  for (int k = 0; k < K; k += kOnce) {
#pragma unroll
    for (int i = 0; i < kOnce; ++i) {
#pragma unroll
      for (int j = 0; j < V; ++j) add_element(digits_of(j), seen[j % C], value(x[i][j]), signs);
    }
#pragma unroll
    for (int i = 0; i + kOnce < K; ++i) x[i] = x[i + kOnce];
  }
}

// --- results --------------------------------------------------------------------------------------------------------------

// Where sums go. Partial sums of the parts of an output: digits, then what was seen, each `outputs` apart.
struct ExactResult {
  void* output;
  int64_t* partials;  // null: none, and results are written
  int64_t outputs;
  uint64_t divisor;
  DType dtype;
  bool states;
  bool root;  // the square root is the result
};
template <class Range>
constexpr int kExactWords = exact_words(Range::kDigits);

__device__ __forceinline__ exact::Format format_of(DType dtype) {
  exact::Format format{};
  switch (dtype) {
#define GPUREDUCE_CASE(name, type, kind, ...)                                      \
  case DType::name:                                                                \
    if constexpr (Kind::kind == Kind::floating) format = exact::format_of<type>(); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_CASE)
#undef GPUREDUCE_CASE
  }
  return format;
}

__device__ __forceinline__ void store_rounded(const ExactResult& result, int64_t index, const exact::Leading& x,
                                              uint32_t seen) {
  const exact::Format format = format_of(result.dtype);
  const uint64_t bits = exact::rounded_bits(format, x, seen);
  switch (format.bytes) {
    case 1: static_cast<uint8_t*>(result.output)[index] = static_cast<uint8_t>(bits); break;
    case 2: static_cast<uint16_t*>(result.output)[index] = static_cast<uint16_t>(bits); break;
    case 4: static_cast<uint32_t*>(result.output)[index] = static_cast<uint32_t>(bits); break;
    default: static_cast<uint64_t*>(result.output)[index] = bits;
  }
}

// Divides or takes the root, rounds and stores. `next`: as normalize() takes it.
inline __device__ __noinline__ void store_magnitude(const ExactResult& result, int64_t index, exact::Magnitude x, uint32_t next,
                                                    uint32_t seen) {
  x.normalize(next);
  const exact::Leading leading = exact::leading(x, result.divisor, result.root, seen);
  store_rounded(result, index, leading, seen);
}

// Writes a result or a state of a thread's number.
template <class Range>
__device__ __noinline__ void store_exact(exact::FixedPoint<Range>& sum, const ExactResult& result, int64_t index) {
  if (result.states) {
    sum.carry();
    exact::write_state(static_cast<int64_t*>(result.output) + index * exact::kStateSize<Range>, sum);
  } else {
    const exact::Leading x = exact::leading(sum, result.divisor, result.root);
    store_rounded(result, index, x, sum.seen);
  }
}

// --- warps ----------------------------------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class F>
__device__ __forceinline__ int warp_reduced(int x, F f) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ int warp_add(int x) {
  return warp_reduced(x, [](int a, int b) { return a + b; });
}
__device__ __forceinline__ int warp_max(int x) {
  return warp_reduced(x, [](int a, int b) { return max(a, b); });
}
__device__ __forceinline__ int warp_min(int x) {
  return warp_reduced(x, [](int a, int b) { return min(a, b); });
}
__device__ __forceinline__ uint32_t warp_or(uint32_t x) {
  return warp_reduced(x, [](int a, int b) { return a | b; });
}
#else
__device__ __forceinline__ int warp_add(int x) { return __reduce_add_sync(~0u, x); }
__device__ __forceinline__ int warp_max(int x) { return __reduce_max_sync(~0u, x); }
__device__ __forceinline__ int warp_min(int x) { return __reduce_min_sync(~0u, x); }
__device__ __forceinline__ uint32_t warp_or(uint32_t x) { return __reduce_or_sync(~0u, x); }
#endif

// A warp's number: lane l has the digits l, l + 32, ...
template <class Range>
struct WarpNumber {
  static constexpr int kEach = (Range::kDigits + kWarp - 1) / kWarp, kLast = Range::kDigits + 1;  // beyond all sums: the sign
  int64_t digits[kEach] = {};

  // Adds n * 2^bit, where all lanes have the same n, below 2^31.
  __device__ __forceinline__ void add(int n, int bit, int lane) {
    const int64_t shifted = static_cast<int64_t>(static_cast<uint64_t>(int64_t{n}) << bit % 32);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane + i * kWarp - bit / 32;
      digits[i] += at == 0 ? shifted & 0xffffffff : at == 1 ? shifted >> 32 : 0;
    }
  }
  // Adds every lane's n, times 2^bit: in three parts whose sums have less than 31 bits.
  __device__ __forceinline__ void add_lanes(int64_t n, int bit, int lane) {
    constexpr int kPart = 22, kParts = 3;
#pragma unroll 1
    for (int i = 0; i < kParts; ++i, n >>= kPart, bit += kPart)
      add(warp_add(i + 1 < kParts ? static_cast<int>(n) & ((1 << kPart) - 1) : static_cast<int>(n)), bit, lane);
  }

  // Brings all digits but the last into [0, 2^32).
  __device__ __forceinline__ void carry(int lane) {
    bool again = true;
    while (again) {
      int64_t over[kEach];
      bool any = false;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        over[i] = lane + i * kWarp < kLast ? digits[i] >> 32 : 0;
        digits[i] -= over[i] << 32;
        any |= over[i] != 0;
      }
      again = __any_sync(~0u, any);
#pragma unroll
      for (int i = kEach - 1; i >= 0; --i) {
        const int64_t from = __shfl_sync(~0u, over[i], (lane + kWarp - 1) % kWarp);
        const int64_t before = i > 0 ? __shfl_sync(~0u, over[i > 0 ? i - 1 : 0], kWarp - 1) : 0;
        digits[i] += lane > 0 ? from : before;
      }
    }
  }
  __device__ __forceinline__ void negate() {
#pragma unroll
    for (int i = 0; i < kEach; ++i) digits[i] = -digits[i];
  }
  // The last digit that is not 0, or -1.
  __device__ __forceinline__ int leading() const {
    int last = -1;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (const uint32_t some = __ballot_sync(~0u, digits[i] != 0)) last = i * kWarp + 31 - __clz(some);
    return last;
  }
  __device__ __forceinline__ int64_t at(int index) const {  // the same for all lanes
    int64_t digit = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (index / kWarp == i) digit = digits[i];
    digit = __shfl_sync(~0u, digit, index % kWarp);
    return index < 0 ? 0 : digit;
  }

  // Writes a result or a state.
  __device__ __forceinline__ void store(const ExactResult& result, int64_t index, uint32_t seen, int lane) {
    // Negative numbers have a negative leading digit, nearly always; if not, the carries tell.
    bool negative = at(leading()) < 0;
    if (negative) negate();
    carry(lane);
    if (at(kLast) < 0) {
      negative = !negative;
      negate();
      carry(lane);
    }
    if (result.states) {
      if (negative) {
        negate();
        carry(lane);
      }
      int64_t* const to = static_cast<int64_t*>(result.output) + index * exact::kStateSize<Range>;
      const int64_t beyond = at(Range::kDigits);
      seen = __shfl_sync(~0u, seen, 0);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int d = lane + i * kWarp;
        if (d < Range::kDigits)
          to[d] = exact::shown_digit(
              d + 1 < Range::kDigits ? digits[i] : digits[i] | static_cast<int64_t>(static_cast<uint64_t>(beyond) << 32), seen);
      }
      if (lane == 0) exact::write_seen<Range>(to, seen);
      return;
    }
    const int last = leading();
    const auto word = [&](int i) { return static_cast<uint64_t>(at(last - i)); };
    const uint64_t high = word(0) << 32 | word(1), low = word(2) << 32 | word(3);
    const auto next = static_cast<uint32_t>(word(4));
    bool more = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) more |= digits[i] != 0 && lane + i * kWarp < last - 4;
    more = __any_sync(~0u, more);
    if (lane == 0) store_magnitude(result, index, {high, low, Range::kLowest + 32 * (last - 3), more, negative}, next, seen);
  }
};

}  // namespace gpureduce::cuda
