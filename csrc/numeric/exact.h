// Exact sums: a fixed-point number with a bit for every power of two that an addend can have, and one rounding at the end.
//
// For example 2^30 + 1.5 - 2^30 in float32. Bit 0 of the number counts 2^-149, and its digits have 32 bits: 2^30 is bit 179,
// that is bit 19 of digit 5, and 1.5 are the bits 149 and 148, of digit 4. Addends are added to digits of 64 bits, which need
// no carries for the first billion of them. Here 2^19 - 2^19 is left in digit 5, and 1.5 in digit 4, in whatever order they
// came. round_exact() carries, takes the 64 leading bits, 1.1000..., and rounds them to the result's dtype: 1.5.
#pragma once

#include "dtypes.h"

// Loops over digits are short code on a GPU, too.
#ifdef __CUDACC__
#define GPUREDUCE_DIGITS _Pragma("unroll 1")
#else
#define GPUREDUCE_DIGITS
#endif

namespace gpureduce::exact {

// The powers of two that an exact sum counts: from 2^lowest, in digits of 32 bits. Up to 2^62 addends fit.
struct NarrowRange { static constexpr int kLowest = -149, kDigits = 10; };     // float32, all smaller floats, integers
struct WideRange { static constexpr int kLowest = -1074, kDigits = 68; };      // float64, products of all others
struct ProductRange { static constexpr int kLowest = -2148, kDigits = 136; };  // products with float64
template <class T>
using RangeOf = std::conditional_t<std::is_same_v<T, double>, WideRange, NarrowRange>;

// What no digit shows. NaN counts as both infinities.
enum Seen : uint32_t { kPlusInfinity = 1, kMinusInfinity = 2, kNaN = 3, kMinusZero = 4, kOther = 8 };  // kOther: not -0

// A sum's digits. The last one is signed, and so are the others before carry().
template <class Range>
struct FixedPoint {
  static constexpr int kDigits = Range::kDigits;
  int64_t digits[kDigits];
  uint32_t seen;

  GPUREDUCE_HOST_DEVICE void clear() {
    GPUREDUCE_DIGITS
    for (int64_t& d : digits) d = 0;
    seen = 0;
  }
  GPUREDUCE_HOST_DEVICE void add(const FixedPoint& other) {
    GPUREDUCE_DIGITS
    for (int i = 0; i < kDigits; ++i) digits[i] += other.digits[i];
    seen |= other.seen;
  }
  // Adds n * 2^(lowest + shift). Digit shift / 32 + 2 must exist.
  GPUREDUCE_HOST_DEVICE void add(int64_t n, int shift) {
    const int first = shift / 32, bit = shift % 32;
    const uint64_t low = (static_cast<uint64_t>(n) & 0xffffffffu) << bit;
    const int64_t high = static_cast<int64_t>(static_cast<uint64_t>(n >> 32) << bit);
    digits[first] += static_cast<int64_t>(low & 0xffffffffu);
    digits[first + 1] += static_cast<int64_t>(low >> 32) + static_cast<int64_t>(static_cast<uint64_t>(high) & 0xffffffffu);
    digits[first + 2] += high >> 32;
  }
  // Brings all digits but the last into [0, 2^32).
  GPUREDUCE_HOST_DEVICE void carry() {
    GPUREDUCE_DIGITS
    for (int i = 0; i + 1 < kDigits; ++i) {
      digits[i + 1] += digits[i] >> 32;
      digits[i] &= 0xffffffff;
    }
  }
  GPUREDUCE_HOST_DEVICE void negate() {
    GPUREDUCE_DIGITS
    for (int64_t& d : digits) d = -d;
  }
};

// --- addends --------------------------------------------------------------------------------------------------------------

// A finite addend is mantissa * 2^(lowest + shift) of its range.
struct Addend {
  int64_t mantissa;
  int shift;
  uint32_t seen;
};

GPUREDUCE_HOST_DEVICE Addend addend_of(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x), exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
  const bool negative = bits >> 31;
  if (exponent == 0xff) return {0, 0, fraction ? kNaN : negative ? kMinusInfinity : kPlusInfinity};
  const int64_t magnitude = exponent ? fraction | 1u << 23 : fraction;
  return {negative ? -magnitude : magnitude, exponent ? static_cast<int>(exponent) - 1 : 0,
          bits == 0x80000000u ? kMinusZero : kOther};
}
GPUREDUCE_HOST_DEVICE Addend addend_of(double x) {
  const uint64_t bits = bit_cast<uint64_t>(x), exponent = bits >> 52 & 0x7ff, fraction = bits & ((1ull << 52) - 1);
  const bool negative = bits >> 63;
  if (exponent == 0x7ff) return {0, 0, fraction ? kNaN : negative ? kMinusInfinity : kPlusInfinity};
  const int64_t magnitude = static_cast<int64_t>(exponent ? fraction | 1ull << 52 : fraction);
  return {negative ? -magnitude : magnitude, exponent ? static_cast<int>(exponent) - 1 : 0,
          bits == 1ull << 63 ? kMinusZero : kOther};
}

// Adds an element. nan_is_zero: NaN counts as +0.
template <class Range, class T>
GPUREDUCE_HOST_DEVICE void add(FixedPoint<Range>& sum, T x, bool negate = false, bool nan_is_zero = false) {
  const auto v = value(x);
  using V = std::decay_t<decltype(v)>;
  if constexpr (std::is_floating_point_v<V>) {
    const Addend a = addend_of(negate ? -v : v);
    sum.seen |= nan_is_zero && a.seen == kNaN ? kOther : a.seen;
    if (a.mantissa) sum.add(a.mantissa, a.shift);
  } else {
    constexpr int kOne = -Range::kLowest;
    sum.seen |= kOther;
    if constexpr (std::is_same_v<V, uint64_t>) {
      const int64_t low = static_cast<int64_t>(v & 0xffffffffu), high = static_cast<int64_t>(v >> 32);
      sum.add(negate ? -low : low, kOne);
      sum.add(negate ? -high : high, kOne + 32);
    } else {  // the lowest int64 has no negative, so its halves are negated
      const int64_t wide = static_cast<int64_t>(v), low = wide & 0xffffffff, high = wide >> 32;
      sum.add(negate ? -low : low, kOne);
      if (high) sum.add(negate ? -high : high, kOne + 32);
    }
  }
}

// --- the one rounding -----------------------------------------------------------------------------------------------------

// The leading bits of a number: bits * 2^exponent, and a little more if `more`. The top bit of `bits` is set, or all are 0.
struct Leading {
  uint64_t bits;
  int exponent;
  bool more, negative;
};

GPUREDUCE_HOST_DEVICE int leading_zeros(uint32_t x) {
#ifdef __CUDA_ARCH__
  return __clz(x);
#else
  return __builtin_clz(x);
#endif
}

// The leading bits of sum / divisor, by long division, digit by digit. `sum` is left carried, as a magnitude.
template <class Range>
GPUREDUCE_HOST_DEVICE Leading leading(FixedPoint<Range>& sum, uint64_t divisor = 1) {
  constexpr int kDigits = Range::kDigits;
  sum.carry();
  Leading result{0, 0, false, sum.digits[kDigits - 1] < 0};
  if (result.negative) {
    sum.negate();
    sum.carry();
  }
  uint32_t found[3] = {0, 0, 0};
  int count = 0;
  uint64_t rest = 0;  // of the division
  GPUREDUCE_DIGITS
  for (int i = kDigits; count < 3 || i >= 0; --i) {
    // The last digit may have more than 32 bits. Below the first digit there are zeros.
    const uint64_t digit = i == kDigits ? static_cast<uint64_t>(sum.digits[kDigits - 1]) >> 32
                           : i >= 0     ? static_cast<uint64_t>(sum.digits[i]) & 0xffffffffu
                                        : 0;
    if (i < 0 && rest == 0) break;
    uint32_t quotient;
    if (divisor == 1 || (digit == 0 && rest == 0)) {
      quotient = static_cast<uint32_t>(digit);
    } else if (divisor >> 32 == 0) {
      const uint64_t dividend = rest << 32 | digit;
      quotient = static_cast<uint32_t>(dividend / divisor);
      rest = dividend - quotient * divisor;
    } else {
      quotient = 0;
      GPUREDUCE_DIGITS
      for (int bit = 31; bit >= 0; --bit) {
        const bool over = rest >> 63;  // then it is at least the divisor once it is doubled
        rest = rest << 1 | (digit >> bit & 1);
        const bool fits = over || rest >= divisor;
        if (fits) rest -= divisor;
        quotient = quotient << 1 | fits;
      }
    }
    if (count == 0 && quotient == 0) continue;
    if (count == 0) result.exponent = Range::kLowest + 32 * i;
    if (count < 3) found[count++] = quotient;
    else result.more |= quotient != 0;
  }
  if (count == 0) return result;
  result.more |= rest != 0;
  const int zeros = leading_zeros(found[0]);
  result.bits = (uint64_t{found[0]} << 32 | found[1]) << zeros | (uint64_t{found[2]} << zeros >> 32);
  result.exponent -= 32 + zeros;
  result.more |= static_cast<uint32_t>(found[2] << zeros) != 0;
  return result;
}

// A floating format: its bytes, the digits of its mantissa, the exponent of its smallest number, and the bits of infinity and
// of NaN.
struct Format {
  int bytes, digits, lowest;
  uint64_t infinity, nan;
};
template <class R>
GPUREDUCE_HOST_DEVICE constexpr Format format_of() {
  if constexpr (std::is_same_v<R, double>) return {8, 53, -1074, 0x7ffull << 52, 0x7ff8ull << 48};
  else if constexpr (std::is_same_v<R, float>) return {4, 24, -149, 0x7f800000, 0x7fc00000};
  else if constexpr (std::is_same_v<R, BFloat16>) return {2, 8, -133, 0x7f80, 0x7fc0};
  else if constexpr (std::is_same_v<R, Half>) return {2, 11, -24, 0x7c00, 0x7e00};
  else if constexpr (std::is_same_v<R, Float8_e5m2>) return {1, 3, -16, 0x7c, 0x7e};
  else return {1, 4, -9, 0x7f, 0x7f};  // float8_e4m3fn has no infinity: larger numbers become NaN, as in round_to()
}

// The bits of the nearest number of a format, ties to even.
GPUREDUCE_HOST_DEVICE uint64_t rounded_bits(const Format& f, const Leading& x, uint32_t seen) {
  uint64_t bits = 0;
  bool negative = x.negative;
  if (seen & kNaN) {
    negative = (seen & kNaN) == kMinusInfinity;
    bits = (seen & kNaN) == kNaN ? f.nan : f.infinity;
  } else if (x.bits == 0) {
    negative = seen == kMinusZero;
  } else {
    const int normal = x.exponent + 64 - f.digits;  // the exponent of the last kept bit of a normal number
    const int last = normal < f.lowest ? f.lowest : normal, dropped = last - x.exponent;
    uint64_t kept = 0, rest = 0;
    if (dropped < 64) {
      kept = x.bits >> dropped;
      rest = x.bits << (64 - dropped);
    } else if (dropped == 64) {
      rest = x.bits;
    }
    const uint64_t half = 1ull << 63;
    kept += rest > half || (rest == half && (x.more || (kept & 1)));
    // A carry into the next power of two is a carry into the exponent.
    bits = kept + (static_cast<uint64_t>(last - f.lowest) << (f.digits - 1));
    if (bits > f.infinity) bits = f.infinity;
  }
  return bits | uint64_t{negative} << (8 * f.bytes - 1);
}
template <class R>
GPUREDUCE_HOST_DEVICE R round_leading(const Leading& x, uint32_t seen) {
  return bit_cast<R>(static_cast<UnsignedOf<sizeof(R)>>(rounded_bits(format_of<R>(), x, seen)));
}

// --- states ---------------------------------------------------------------------------------------------------------------

// A state is a carried number as int64s that are added one by one, up to 2^31 states in any order: the digits, how many states
// had +infinity and -infinity (in the low and high 32 bits), and how many had only -0 and how many had other addends.
template <class Range>
constexpr int kStateSize = Range::kDigits + 2;

// What cannot change the result is left out, so that the order of the elements does not show: the digits beside an infinity,
// and a -0 beside other addends.
GPUREDUCE_HOST_DEVICE int64_t shown_digit(int64_t digit, uint32_t seen) { return seen & kNaN ? 0 : digit; }
template <class Range>
GPUREDUCE_HOST_DEVICE void write_seen(int64_t* state, uint32_t seen) {
  const auto both = [](bool low, bool high) { return int64_t{low} | int64_t{high} << 32; };
  const uint32_t zeros_and_others = seen & kNaN ? 0 : seen;
  state[Range::kDigits] = both(seen & kPlusInfinity, seen & kMinusInfinity);
  state[Range::kDigits + 1] = both(zeros_and_others == kMinusZero, zeros_and_others & kOther);
}
template <class Range>
GPUREDUCE_HOST_DEVICE void write_state(int64_t* to, const FixedPoint<Range>& carried) {
  GPUREDUCE_DIGITS
  for (int i = 0; i < Range::kDigits; ++i) to[i] = shown_digit(carried.digits[i], carried.seen);
  write_seen<Range>(to, carried.seen);
}

template <class Range>
GPUREDUCE_HOST_DEVICE void add_state(FixedPoint<Range>& sum, const int64_t* from) {
  GPUREDUCE_DIGITS
  for (int i = 0; i < Range::kDigits; ++i) sum.digits[i] += from[i];
  const auto has = [](int64_t both, uint32_t low, uint32_t high) {
    return ((both & 0xffffffff) ? low : 0u) | (both >> 32 ? high : 0u);
  };
  sum.seen |= has(from[Range::kDigits], kPlusInfinity, kMinusInfinity) | has(from[Range::kDigits + 1], kMinusZero, kOther);
}

}  // namespace gpureduce::exact
