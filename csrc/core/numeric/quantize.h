// Rounding to float8 with a scale per block of a row's elements. One source for CPU and GPU. Pure C++: no torch, no CUDA.
//
// For example the block 1, -2, 3, 0.3 to float8_e4m3fn, whose largest number is 448. The largest magnitude is 3, so the scale
// is 3 / 448 = 0.00669643. The quotients are 149.33, -298.67, 448 and 44.8. float8 has a number at every 16 from 128 to 256, at
// every 32 above, and at every 4 from 32 to 64: the values are 144, -288, 448 and 44. As a power of two the scale is 2^-7, and
// the values are 128, -256, 384 and 40.
#pragma once

#include "dtypes.h"

namespace gpureduce {

// No scale is below this, the smallest normal number: then a block of zeros has a scale, and no quotient is far above `most`.
constexpr float kLeastScale = 0x1p-126f;

// The largest number of a float8 dtype.
constexpr float most_of(DType float8) { return float8 == DType::Float8_e4m3fn ? 448.0f : 57344.0f; }

// The scale of a block whose largest magnitude is `largest`: NaN unless that is finite. power: the next power of two that is
// not below it. `most` is 7 times a power of two, so a quotient above a power of two never rounds to it.
GPUREDUCE_HOST_DEVICE float scale_of(float largest, float most, bool power) {
  if (!(largest < INFINITY)) return NAN;
  const float quotient = largest / most, scale = quotient < kLeastScale ? kLeastScale : quotient;
  return power ? bit_cast<float>((bit_cast<uint32_t>(scale) + 0x7fffffu) & 0xff800000u) : scale;
}

// The bits of float32 without the sign. They have the order of the magnitudes, and NaN is above all numbers.
GPUREDUCE_HOST_DEVICE uint32_t magnitude_bits(float x) { return bit_cast<uint32_t>(x) & 0x7fffffffu; }

// A power of two as float8_e8m0fnu, which is its exponent.
GPUREDUCE_HOST_DEVICE uint8_t exponent_of(float power) {
  return power == power ? static_cast<uint8_t>(bit_cast<uint32_t>(power) >> 23) : 0xff;
}

// Rounds to the nearest float8, ties to even; larger numbers become the largest one. Without branches, so that loops vectorise.
template <int kExponentBits, int kMantissaBits>
GPUREDUCE_HOST_DEVICE uint8_t saturated(float x) {
  constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1, kShift = 23 - kMantissaBits;
  constexpr uint32_t kMost = kMantissaBits == 3 ? 0x7e : 0x7b;  // e5m2 has infinity behind its numbers
  constexpr uint32_t kPlace = (128 - kBias + kShift) << 23;     // the last place of such a number is a subnormal's
  const uint32_t magnitude = magnitude_bits(x);
  const uint32_t normal =
      (magnitude - ((127 - kBias) << 23) + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1)) >> kShift;
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + bit_cast<float>(kPlace)) - kPlace;
  const uint32_t number = magnitude < (128 - kBias) << 23 ? subnormal : normal;
  const uint32_t least = number < kMost ? number : kMost, sign = bit_cast<uint32_t>(x) >> 24 & 0x80;
  return static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7f : sign | least);
}

}  // namespace gpureduce
