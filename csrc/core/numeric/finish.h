// The last step of an operation: applied to an output's accumulator before it is rounded to the result. Roots are correctly
// rounded.
#pragma once

#include "map.h"

namespace gpureduce {

// quotient divides by the number of elements; all gives 1 if the accumulator equals that number, otherwise 0; logarithm needs
// the output's largest element, too (exponents.h).
enum class Finish : uint8_t { none, quotient, square_root, cube_root, negative, all, logarithm };

// A sum divided by a count, in the accumulator's precision; integers in double.
template <class Acc>
GPUREDUCE_HOST_DEVICE auto quotient(Acc sum, int64_t count) {
  if constexpr (IsComplex<Acc>::value) return Acc{quotient(sum.re, count), quotient(sum.im, count)};
  else if constexpr (std::is_integral_v<Acc>) return static_cast<double>(sum) / static_cast<double>(count);
  else return sum / static_cast<Acc>(count);
}

GPUREDUCE_HOST_DEVICE float square_root(float x) { return sqrtf(x); }
GPUREDUCE_HOST_DEVICE double square_root(double x) { return sqrt(x); }

// The cube root, rounded to the nearest double; NaN of a negative number, which no sum of cubes is.
inline GPUREDUCE_OUT_OF_LINE double cube_root(double x) {
  if (!(x < INFINITY) || x == 0) return x;
  if (x < 0) return NAN;
  // x = u * 2^(3 * scale), with u from 1/8 to 1. The root of u is found with one bit more than a double has.
  int exponent = 0;
  const uint64_t digits = static_cast<uint64_t>(ldexp(frexp(x, &exponent), 53));
  const int scale = exponent >= 0 ? (exponent + 2) / 3 : -(-exponent / 3), shift = exponent - 3 * scale;
  const unsigned __int128 cube = static_cast<unsigned __int128>(digits) << (shift + 45);  // u * 2^162, less 64 zero bits
  const auto is_above = [cube](uint64_t root) {                                           // root^3 > u * 2^162
    const unsigned __int128 two = static_cast<unsigned __int128>(root) * root;
    const unsigned __int128 low = static_cast<unsigned __int128>(static_cast<uint64_t>(two)) * root;
    const unsigned __int128 high = (two >> 64) * root + (low >> 64);
    return high > cube || (high == cube && static_cast<uint64_t>(low) > 0);
  };
  uint64_t root = static_cast<uint64_t>(cbrt(ldexp(static_cast<double>(digits), shift - 53)) * 0x1p+54);
  while (is_above(root)) --root;
  while (!is_above(root + 1)) ++root;
  return ldexp(static_cast<double>((root + 1) / 2), scale - 53);  // no cube root lies halfway between two doubles
}
// A cube root within 4 units in the last place of a double rounds to the right float32: no cube root of a float32 is nearer
// than 9 such units to the middle between two float32 (tests/test_model.py).
inline GPUREDUCE_OUT_OF_LINE float cube_root(float x) { return x < 0 ? NAN : static_cast<float>(cbrt(static_cast<double>(x))); }

// Applies `finish` to an accumulator of `count` elements, in the accumulator's precision.
template <class Acc>
GPUREDUCE_HOST_DEVICE auto finished(Acc x, Finish finish, int64_t count) {
  if constexpr (IsLargest<Acc>::value) {
    return finish == Finish::negative ? opposite(x) : x;
  } else if constexpr (IsProduct<Acc>::value) {
    return x;
  } else if constexpr (std::is_integral_v<Acc>) {
    return finish == Finish::all ? static_cast<double>(x == count) : quotient(x, count);
  } else if constexpr (std::is_floating_point_v<Acc>) {
    return finish == Finish::square_root ? square_root(x) : finish == Finish::cube_root ? cube_root(x) : quotient(x, count);
  } else {
    return quotient(x, count);
  }
}

}  // namespace gpureduce
