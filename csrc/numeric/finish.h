// What becomes of what an output's elements come to, before it is rounded to the result. Roots are correctly rounded.
#pragma once

#include "map.h"

namespace gpureduce {

// Nothing; the quotient by the number of elements; a root; the negative; whether it is as many as there are elements; the
// logarithm.
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

// The nearest double to the cube root of a number that is not negative, or NaN.
inline GPUREDUCE_OUT_OF_LINE double cube_root(double x) {
  if (!(x < INFINITY) || x == 0) return x;
  // x = u * 2^(3 * scale), with u from 1/8 to 1, and so a root of u with one binary digit more than a double has.
  int exponent = 0;
  const uint64_t digits = static_cast<uint64_t>(ldexp(frexp(x, &exponent), 53));
  const int scale = exponent >= 0 ? (exponent + 2) / 3 : -(-exponent / 3), shift = exponent - 3 * scale;
  const unsigned __int128 cube = static_cast<unsigned __int128>(digits) << (shift + 45);  // u * 2^162, less 64 zeros
  const auto is_above = [cube](uint64_t root) {                                           // of u * 2^54, cubed
    const unsigned __int128 two = static_cast<unsigned __int128>(root) * root;
    const unsigned __int128 low = static_cast<unsigned __int128>(static_cast<uint64_t>(two)) * root;
    const unsigned __int128 high = (two >> 64) * root + (low >> 64);
    return high > cube || (high == cube && static_cast<uint64_t>(low) > 0);
  };
  uint64_t root = static_cast<uint64_t>(cbrt(ldexp(static_cast<double>(digits), shift - 53)) * 0x1p+54);
  while (is_above(root)) --root;
  while (!is_above(root + 1)) ++root;
  return ldexp(static_cast<double>((root + 1) / 2), scale - 53);  // none lies halfway between two doubles
}
// Of a float32, any cube root within 4 units in the last place of a double is rounded right: none of them is nearer than 9 such
// units to the middle between two float32 (tests/test_model.py).
inline GPUREDUCE_OUT_OF_LINE float cube_root(float x) { return static_cast<float>(cbrt(static_cast<double>(x))); }

// What `finish` makes of an accumulator of `count` elements, in its precision.
template <class Acc>
GPUREDUCE_HOST_DEVICE auto finished(Acc x, Finish finish, int64_t count) {
  if constexpr (IsLargest<Acc>::value) {
    return finish == Finish::negative ? opposite(x) : x;
  } else if constexpr (IsProduct<Acc>::value) {
    return x;
  } else if constexpr (IsLogSum<Acc>::value) {
    return static_cast<double>(x.largest) + logarithm(x.sum);
  } else if constexpr (std::is_integral_v<Acc>) {
    return finish == Finish::all ? static_cast<double>(x == count) : quotient(x, count);
  } else if constexpr (std::is_floating_point_v<Acc>) {
    return finish == Finish::square_root ? square_root(x) : finish == Finish::cube_root ? cube_root(x) : quotient(x, count);
  } else {
    return quotient(x, count);
  }
}

}  // namespace gpureduce
