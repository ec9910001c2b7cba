// Exact sums: a fixed-point number with a bit for every power of two that an addend can have, and one rounding at the end.
//
// For example 2^30 + 1.5 - 2^30 in float32. Bit 0 of the number counts 2^-149, and its digits have 32 bits: 2^30 is bit 179,
// that is bit 19 of digit 5, and 1.5 are the bits 149 and 148, of digit 4. Addends are added to digits of 64 bits, which need
// no carries for the first billion of them. Here 2^19 - 2^19 is left in digit 5, and 1.5 in digit 4, in whatever order they
// came. round_exact() carries, takes the 64 leading bits, 1.1000..., and rounds them to the result's dtype: 1.5.
#pragma once

#include "dtypes.h"

namespace gpureduce::exact {

// The powers of two that an exact sum counts: from 2^lowest, in digits of 32 bits. Up to 2^62 addends fit.
struct NarrowRange { static constexpr int kLowest = -149, kDigits = 10; };     // float32, all smaller floats, integers
struct WideRange { static constexpr int kLowest = -1074, kDigits = 68; };      // float64, products of all others
struct ProductRange { static constexpr int kLowest = -2148, kDigits = 136; };  // products with float64
template <class T>
using RangeOf = std::conditional_t<std::is_same_v<T, double>, WideRange, NarrowRange>;

// What the digits do not show of the addends. A sum of both infinities is NaN, so NaN has both bits. kOther: any but -0.
enum Seen : uint32_t { kPlusInfinity = 1, kMinusInfinity = 2, kNaN = 3, kMinusZero = 4, kOther = 8 };

// A sum's digits. The last one is signed, and so are the others before carry().
template <class Range>
struct FixedPoint {
  static constexpr int kDigits = Range::kDigits;
  int64_t digits[kDigits];
  uint32_t seen;

  GPUREDUCE_HOST_DEVICE void clear() {
    GPUREDUCE_SHORT_CODE
    for (int64_t& d : digits) d = 0;
    seen = 0;
  }
  GPUREDUCE_HOST_DEVICE void add(const FixedPoint& other) {
    GPUREDUCE_SHORT_CODE
    for (int i = 0; i < kDigits; ++i) digits[i] += other.digits[i];
    seen |= other.seen;
  }
  // Adds magnitude * 2^(lowest + shift), or subtracts it. Digit shift / 32 + 2 must exist.
  GPUREDUCE_HOST_DEVICE void add(uint64_t magnitude, int shift, bool subtracts) {
    const int first = shift / 32, bit = shift % 32;
    const uint64_t low = (magnitude & 0xffffffffu) << bit, high = (low >> 32) + (magnitude >> 32 << bit);
    const int64_t sign = -int64_t{subtracts};
    digits[first] += (static_cast<int64_t>(low & 0xffffffffu) ^ sign) - sign;
    digits[first + 1] += (static_cast<int64_t>(high & 0xffffffffu) ^ sign) - sign;
    digits[first + 2] += (static_cast<int64_t>(high >> 32) ^ sign) - sign;
  }
  // Brings all digits but the last into [0, 2^32).
  GPUREDUCE_HOST_DEVICE void carry() {
    GPUREDUCE_SHORT_CODE
    for (int i = 0; i + 1 < kDigits; ++i) {
      digits[i + 1] += digits[i] >> 32;
      digits[i] &= 0xffffffff;
    }
  }
  GPUREDUCE_HOST_DEVICE void negate() {
    GPUREDUCE_SHORT_CODE
    for (int64_t& d : digits) d = -d;
  }
};

// --- addends --------------------------------------------------------------------------------------------------------------

// A finite element is magnitude * 2^exponent, or its negative. `seen` is what a sum of this element alone has seen.
struct Element {
  uint64_t magnitude;
  int exponent;
  bool negative;
  uint32_t seen;

  GPUREDUCE_HOST_DEVICE bool finite() const { return (seen & kNaN) == 0; }
  GPUREDUCE_HOST_DEVICE bool zero() const { return magnitude == 0 && finite(); }
};

// From the bits of a float, without the sign.
template <int kFractionBits, int kLowest>
GPUREDUCE_HOST_DEVICE Element float_element(uint64_t bits, bool negative) {
  constexpr uint64_t kOne = uint64_t{1} << kFractionBits;  // of an exponent
  constexpr int kInfinity = kFractionBits == 52 ? 0x7ff : 0xff;
  const int exponent = static_cast<int>(bits >> kFractionBits);
  const uint64_t fraction = bits & (kOne - 1);
  if (exponent == kInfinity) return {0, 0, negative, fraction ? kNaN : negative ? kMinusInfinity : kPlusInfinity};
  return {exponent ? fraction | kOne : fraction, kLowest + (exponent ? exponent - 1 : 0), negative,
          bits == 0 && negative ? kMinusZero : kOther};
}

// The element or, if it is a float, its negative.
template <class T>
GPUREDUCE_HOST_DEVICE Element element_of(T x, bool negate = false) {
  const auto v = value(x);
  using V = std::decay_t<decltype(v)>;
  if constexpr (std::is_same_v<V, double>) {
    const uint64_t bits = bit_cast<uint64_t>(v);
    return float_element<52, -1074>(bits & ~(uint64_t{1} << 63), (bits >> 63 != 0) != negate);
  } else if constexpr (std::is_same_v<V, float>) {
    const uint32_t bits = bit_cast<uint32_t>(v);
    return float_element<23, -149>(bits & ~(1u << 31), (bits >> 31 != 0) != negate);
  } else {
    const bool negative = std::is_signed_v<V> && v < V{};
    const uint64_t bits = static_cast<uint64_t>(v);
    return {negative ? 0 - bits : bits, 0, negative, kOther};
  }
}

// Adds an element. The range may begin above the element's dtype if the element's bits below are 0.
template <class Range>
GPUREDUCE_HOST_DEVICE void add(FixedPoint<Range>& sum, Element x) {
  sum.seen |= x.seen;
  if (x.magnitude == 0) return;
  const int shift = x.exponent - Range::kLowest;
  sum.add(shift < 0 ? x.magnitude >> -shift : x.magnitude, shift < 0 ? 0 : shift, x.negative);
}

struct Bits128 { uint64_t high, low; };
GPUREDUCE_HOST_DEVICE Bits128 multiplied(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return {__umul64hi(a, b), a * b};
#else
  const auto product = static_cast<unsigned __int128>(a) * b;
  return {static_cast<uint64_t>(product >> 64), static_cast<uint64_t>(product)};
#endif
}

// Adds a product of two elements. IEEE arithmetic says which products are -0, infinite or NaN.
template <class Range>
GPUREDUCE_HOST_DEVICE void add_product(FixedPoint<Range>& sum, const Element& a, const Element& b) {
  const bool negative = a.negative != b.negative;
  if (!a.finite() || !b.finite()) {
    const bool nan = (a.seen & kNaN) == kNaN || (b.seen & kNaN) == kNaN || a.zero() || b.zero();
    sum.seen |= nan ? kNaN : negative ? kMinusInfinity : kPlusInfinity;
    return;
  }
  const Bits128 product = multiplied(a.magnitude, b.magnitude);
  const int shift = a.exponent + b.exponent - Range::kLowest;
  sum.seen |= negative && (a.zero() || b.zero()) ? kMinusZero : kOther;
  if (product.low) sum.add(product.low, shift, negative);
  if (product.high) sum.add(product.high, shift + 64, negative);
}

// --- the one rounding -----------------------------------------------------------------------------------------------------

GPUREDUCE_HOST_DEVICE int leading_zeros(uint64_t x) {
#ifdef __CUDA_ARCH__
  return __clzll(x);
#else
  return __builtin_clzll(x);
#endif
}

// The magnitude (high * 2^64 + low) * 2^exponent, and a little more if `more`: less than 2^exponent.
struct Magnitude {
  uint64_t high, low;
  int exponent;
  bool more, negative;

  // Moves the first bit that is 1 to the top, if there is one, and bits of `next` to the end: the 32 bits below `low`, which
  // are 0 unless one of the first 32 bits is 1.
  GPUREDUCE_HOST_DEVICE void normalize(uint32_t next = 0) {
    if ((high | low) == 0) return;
    int moved = 0;
    if (high == 0) {
      high = low;
      low = 0;
      moved = 64;
    }
    const int zeros = leading_zeros(high);
    if (zeros > 0) high = high << zeros | low >> (64 - zeros);
    const uint64_t after = uint64_t{next} << zeros;
    low = low << zeros | after >> 32;
    more |= static_cast<uint32_t>(after) != 0;
    exponent -= moved + zeros;
  }
};

// The leading 128 bits of a sum, normalized. `sum` is left carried, as a magnitude.
template <class Range>
GPUREDUCE_HOST_DEVICE Magnitude magnitude_of(FixedPoint<Range>& sum) {
  constexpr int kDigits = Range::kDigits;
  sum.carry();
  Magnitude result{0, 0, 0, false, sum.digits[kDigits - 1] < 0};
  if (result.negative) {
    sum.negate();
    sum.carry();
  }
  // The last digit may have more than 32 bits. Below the first digit there are zeros.
  const auto word = [&](int i) -> uint64_t {
    if (i == kDigits) return static_cast<uint64_t>(sum.digits[kDigits - 1]) >> 32;
    return i >= 0 ? static_cast<uint64_t>(sum.digits[i]) & 0xffffffffu : 0;
  };
  int last = kDigits;
  GPUREDUCE_SHORT_CODE
  while (last >= 0 && word(last) == 0) --last;
  if (last < 0) return result;
  result.high = word(last) << 32 | word(last - 1);
  result.low = word(last - 2) << 32 | word(last - 3);
  result.exponent = Range::kLowest + 32 * (last - 3);
  result.normalize(static_cast<uint32_t>(word(last - 4)));
  GPUREDUCE_SHORT_CODE
  for (int i = last - 5; i >= 0; --i) result.more |= sum.digits[i] != 0;
  return result;
}

// The leading bits of a result: bits * 2^exponent, and a little more if `more`. The top bit of `bits` is set, or all are 0.
struct Leading {
  uint64_t bits;
  int exponent;
  bool more, negative;
};

// Divides a normalized magnitude, by long division. Its 128 bits and 64 of the divisor give a quotient of at least 64 bits.
inline GPUREDUCE_OUT_OF_LINE Leading long_quotient(Magnitude x, uint64_t divisor) {
  Leading result{x.high, x.exponent + 64, x.more, x.negative};
  if (divisor >> 32 == 0) {  // by digits of 32 bits
    const uint64_t first = x.high / divisor;
    const uint64_t rest = (x.high - first * divisor) << 32 | x.low >> 32, second = rest / divisor;
    const int shift = leading_zeros(first);  // at most 32
    result.bits = first << shift | second << shift >> 32;
    result.exponent -= shift;
    result.more =
        x.more || static_cast<uint32_t>(second << shift) != 0 || second * divisor != rest || static_cast<uint32_t>(x.low) != 0;
    return result;
  }
  Magnitude q{0, 0, x.exponent, x.more, x.negative};
  uint64_t rest = 0;
  GPUREDUCE_SHORT_CODE
  for (int bit = 127; bit >= 0; --bit) {
    const bool over = rest >> 63;  // then it is at least the divisor once it is doubled
    rest = rest << 1 | ((bit < 64 ? x.low >> bit : x.high >> (bit - 64)) & 1);
    const bool fits = over || rest >= divisor;
    if (fits) rest -= divisor;
    q.high = q.high << 1 | q.low >> 63;
    q.low = q.low << 1 | uint64_t{fits};
  }
  q.normalize();
  return {q.high, q.exponent + 64, q.more || q.low != 0 || rest != 0, q.negative};
}

// The quotient of a normalized magnitude. Nearly all divisors are powers of two, as 1 is. The others have a function of their
// own.
GPUREDUCE_HOST_DEVICE Leading quotient(const Magnitude& x, uint64_t divisor) {
  if (x.high != 0 && (divisor & (divisor - 1)) != 0) return long_quotient(x, divisor);
  return {x.high, x.exponent + 64 - (63 - leading_zeros(divisor)), x.more || x.low != 0, x.negative};
}

// The square root of a normalized magnitude. The root of an integer of 127 or 128 bits has 64 bits.
inline GPUREDUCE_OUT_OF_LINE Leading root(Magnitude x) {
  if (x.high == 0) return {0, 0, false, x.negative};
  if (x.exponent % 2 != 0) {
    x.more |= x.low & 1;
    x.low = x.low >> 1 | x.high << 63;
    x.high >>= 1;
    ++x.exponent;
  }
  uint64_t bits = 0;
  bool less = false;  // the square of `bits` is less than x
  GPUREDUCE_SHORT_CODE
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t more = bits | uint64_t{1} << bit;
    const Bits128 square = multiplied(more, more);
    if (square.high > x.high || (square.high == x.high && square.low > x.low)) continue;
    bits = more;
    less = square.high != x.high || square.low != x.low;
  }
  return {bits, x.exponent / 2, x.more || less, x.negative};
}

// The leading bits of a sum's result: its root, or its quotient. The root of a sum below 0 is NaN, which `seen` then says.
GPUREDUCE_HOST_DEVICE Leading leading(const Magnitude& x, uint64_t divisor, bool takes_root, uint32_t& seen) {
  if (!takes_root) return quotient(x, divisor);
  const bool finite = (seen & kNaN) == 0;
  if (finite ? x.negative && x.high != 0 : (seen & kNaN) == kMinusInfinity) seen |= kNaN;
  return root(x);
}
template <class Range>
GPUREDUCE_HOST_DEVICE Leading leading(FixedPoint<Range>& sum, uint64_t divisor, bool takes_root) {
  return leading(magnitude_of(sum), divisor, takes_root, sum.seen);
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
  GPUREDUCE_SHORT_CODE
  for (int i = 0; i < Range::kDigits; ++i) to[i] = shown_digit(carried.digits[i], carried.seen);
  write_seen<Range>(to, carried.seen);
}

template <class Range>
GPUREDUCE_HOST_DEVICE void add_state(FixedPoint<Range>& sum, const int64_t* from) {
  GPUREDUCE_SHORT_CODE
  for (int i = 0; i < Range::kDigits; ++i) sum.digits[i] += from[i];
  const auto has = [](int64_t both, uint32_t low, uint32_t high) {
    return ((both & 0xffffffff) ? low : 0u) | (both >> 32 ? high : 0u);
  };
  sum.seen |= has(from[Range::kDigits], kPlusInfinity, kMinusInfinity) | has(from[Range::kDigits + 1], kMinusZero, kOther);
}

}  // namespace gpureduce::exact
