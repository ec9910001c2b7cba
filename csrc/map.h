// What an operation makes of an element before it is added. Each arithmetic operation here is rounded to the accumulator's
// type.
#pragma once

#include "dtypes.h"

namespace gpureduce {

GPUREDUCE_HOST_DEVICE float magnitude(float x) { return fabsf(x); }
GPUREDUCE_HOST_DEVICE double magnitude(double x) { return fabs(x); }

// Squares of float32 are exact in float64.
GPUREDUCE_HOST_DEVICE float magnitude(Complex<float> x) {
  if (fabsf(x.re) == INFINITY || fabsf(x.im) == INFINITY) return INFINITY;
  const double re = x.re, im = x.im;
  return static_cast<float>(sqrt(re * re + im * im));
}

// Numbers far from 1 are brought nearer by a power of two, so that no square overflows or vanishes.
GPUREDUCE_HOST_DEVICE double magnitude(Complex<double> x) {
  const double re = fabs(x.re), im = fabs(x.im), larger = re > im ? re : im;
  if (re == INFINITY || im == INFINITY) return INFINITY;
  const double scale = larger > 0x1p+500 ? 0x1p-600 : larger < 0x1p-400 ? 0x1p+600 : 1;
  const double a = re * scale, b = im * scale;
  return sqrt(a * a + b * b) / scale;
}

template <class Real>
GPUREDUCE_HOST_DEVICE Real square(Real x) {
  return x * x;
}
template <class Real>
GPUREDUCE_HOST_DEVICE Real square(Complex<Real> x) {
  return x.re * x.re + x.im * x.im;
}

template <Map map, class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc mapped(In x) {
  if constexpr (map == Map::value) {
    return addend<Acc>(x);
  } else if constexpr (map == Map::nonzero) {
    return addend<Acc>(nonzero(x));
  } else {
    using Real = decltype(number(Acc{}));
    const auto v = addend<std::conditional_t<IsComplex<In>::value, Complex<Real>, Real>>(x);
    if constexpr (map == Map::square) return {square(v)};
    else if constexpr (map == Map::cube) return {square(magnitude(v)) * magnitude(v)};
    else if constexpr (map == Map::negative_magnitude) return {-magnitude(v)};
    else return {magnitude(v)};
  }
}

// Whether kernels are compiled for elements of a dtype, a map and an accumulator. All else is converted at run time.
constexpr bool is_compiled(Map map, Accumulator to, const DTypeInfo& in) {
  const bool plain = in.kind == Kind::floating && in.size > 1, own = to == in.accumulator;
  switch (map) {
    case Map::value: return own || (to == in.wide && plain);
    case Map::square: return own && plain;
    case Map::magnitude: return plain && (own || to == in.wide || (to == Accumulator::largest_f32 && in.size <= 4));
    default: return false;
  }
}

// Whether kernels take magnitudes by leaving signs out of what they load; the largest ones are compiled for that.
constexpr bool drops_signs(Map map, Accumulator to) { return map == Map::magnitude && to != Accumulator::largest_f32; }

// An element that kernels know by what a map makes of it.
template <class In, Map kMap>
struct Mapped {
  In element;
};

template <class T> struct IsMapped : std::false_type {};
template <class In, Map map> struct IsMapped<Mapped<In, map>> : std::true_type {};

template <class Acc, class In, Map map>
GPUREDUCE_HOST_DEVICE Acc addend(Mapped<In, map> x) {
  return mapped<map, Acc>(x.element);
}

}  // namespace gpureduce
