// The maps, which an operation applies to each element before it is added. Each arithmetic operation here is rounded to the
// accumulator's type.
#pragma once

#include "exponential.h"

namespace gpureduce {

GPUREDUCE_HOST_DEVICE float magnitude(float x) { return fabsf(x); }
GPUREDUCE_HOST_DEVICE double magnitude(double x) { return fabs(x); }

// Squares of float32 are exact in float64.
GPUREDUCE_HOST_DEVICE float magnitude(Complex<float> x) {
  if (fabsf(x.re) == INFINITY || fabsf(x.im) == INFINITY) return INFINITY;
  const double re = x.re, im = x.im;
  return static_cast<float>(sqrt(re * re + im * im));
}

// Numbers far from 1 are scaled by a power of two, so that no square overflows or underflows.
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

template <class T>
GPUREDUCE_HOST_DEVICE auto cube(T x) {
  return square(magnitude(x)) * magnitude(x);
}

// An element as a Largest. Unsigned integers become signed ones of the same order.
template <class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc in_order(In x) {
  if constexpr (std::is_unsigned_v<In>) return {static_cast<Number<Acc>>(static_cast<std::make_signed_t<In>>(ordered(x)))};
  else return addend<Acc>(x);
}

template <class T>
GPUREDUCE_HOST_DEVICE Largest<T> opposite(Largest<T> x) {
  if constexpr (std::is_integral_v<T>) return {~x.value};
  else return {-x.value};
}

template <class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc number_or_zero(In x) {
  const auto v = value(x);
  if constexpr (std::is_floating_point_v<decltype(v)>) return v == v ? addend<Acc>(v) : Acc{0};
  else return addend<Acc>(x);
}

// The maps from real to real numbers that are chosen at run time if no kernel is compiled for them.
#define GPUREDUCE_REAL_MAPS(X) X(cofactor) X(number) X(magnitude) X(square) X(cube)

template <Map map, class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc mapped(In x) {
  if constexpr (map == Map::nonzero) {
    return addend<Acc>(nonzero(x));
  } else if constexpr (map == Map::number) {
    return number_or_zero<Acc>(x);
  } else if constexpr (map == Map::cofactor) {
    const Acc factor = addend<Acc>(x);
    return number(factor) == 0 ? Acc{1} : factor;
  } else if constexpr (map == Map::value && IsLargest<Acc>::value) {
    return in_order<Acc>(x);
  } else if constexpr (map == Map::negative) {
    return opposite(in_order<Acc>(x));
  } else if constexpr (map == Map::value || map == Map::factor) {
    return addend<Acc>(x);
  } else {
    using Real = Number<Acc>;
    const auto v = addend<std::conditional_t<IsComplex<In>::value, Complex<Real>, Real>>(x);
    if constexpr (map == Map::square) return {square(v)};
    else if constexpr (map == Map::cube) return {cube(v)};
    else if constexpr (map == Map::negative_magnitude) return {-magnitude(v)};
    else return {magnitude(v)};
  }
}

// True if the result depends on the elements' signs.
constexpr bool is_signed(Map map) {
  return map == Map::value || map == Map::factor || map == Map::cofactor || map == Map::number || map == Map::negative ||
         map == Map::exponent;
}

// The accumulator of a maximum of floats, magnitudes or integers.
constexpr Accumulator largest_of(const DTypeInfo& in) {
  const bool wide = in.accumulator == Accumulator::f64 || in.accumulator == Accumulator::c128;
  return in.kind == Kind::integer ? Accumulator::largest_i64 : wide ? Accumulator::largest_f64 : Accumulator::largest_f32;
}

// True if the kernels that convert elements at run time, on the CPU and on GPUs, have this map for this accumulator. Other
// combinations are refused.
constexpr bool is_convertible(Map map, Accumulator to, const DTypeInfo& in) {
  const bool real = in.kind != Kind::complex, sum = to == Accumulator::f32 || to == Accumulator::f64;
  const bool largest = to == Accumulator::largest_f32 || to == Accumulator::largest_f64;
  switch (map) {
    case Map::value: return real || sum || to == Accumulator::c64 || to == Accumulator::c128;
    case Map::factor:
      return real && (to == Accumulator::product_f32 || to == Accumulator::product_f64 || to == Accumulator::product_i64);
    case Map::cofactor: return real && to == Accumulator::product_f64;
    case Map::exponent: return false;  // exponents.h
    case Map::nonzero: return to == Accumulator::i64;
    case Map::number: return real && sum;
    case Map::square:
    case Map::cube: return sum;
    case Map::magnitude: return sum || largest;
    case Map::negative: return real && (largest || to == Accumulator::largest_i64);
    case Map::negative_magnitude: return largest;
  }
  return false;
}

// True if kernels are compiled for a map, an accumulator and a dtype. Other elements are converted at run time: kernels for
// rare dtypes of rare operations would make the library larger than users want to download.
constexpr bool is_compiled(Map map, Accumulator to, DType dtype) {
  const DTypeInfo& in = info(dtype);
  const bool plain = in.kind == Kind::floating && in.size > 1, single = plain && in.size < 8, own = to == in.accumulator;
  const bool complex = dtype == DType::ComplexFloat;
  const bool ordered = map == Map::value || map == Map::negative || map == Map::magnitude || map == Map::negative_magnitude;
  switch (to) {
    case Accumulator::largest_f32: return ordered && (single || complex);
    case Accumulator::largest_f64: return ordered && dtype == DType::Double;
    case Accumulator::product_f64: return dtype == DType::Double && map == Map::factor;
    case Accumulator::largest_i64: return ordered && in.kind == Kind::integer;
    case Accumulator::product_f32: return single && map == Map::factor;
    case Accumulator::product_i64: return in.kind == Kind::integer && in.size >= 4 && !in.is_rare() && map == Map::factor;
    default: break;
  }
  const bool widened = to == in.wide && plain && in.size > 2;
  switch (map) {
    case Map::value: return own || widened;
    case Map::nonzero: return to == Accumulator::i64 && in.size <= 8;
    case Map::square:
      return (own && plain) || (complex && to == Accumulator::f32) || (dtype == DType::ComplexDouble && to == Accumulator::f64);
    case Map::number: return own && plain;
    case Map::magnitude: return (plain && (own || widened)) || (complex && to == Accumulator::f32);
    default: return false;
  }
}

// True for sums whose kernels are compiled in all variants. Other operations have only the reduced set.
constexpr bool is_plain_sum(Map map, Accumulator to, const DTypeInfo& in) {
  return (map == Map::value || map == Map::magnitude) && to == in.accumulator && !in.is_rare();
}

// True for sums of magnitudes: kernels clear the signs of elements as they load them.
constexpr bool drops_signs(Map map, Accumulator to) {
  return map == Map::magnitude && (to == Accumulator::f32 || to == Accumulator::f64);
}

// Element types that carry their operation: a map, or a maximum. Bit masks on load clear or flip the signs of floats, and turn
// integers into signed ones of the same order, so that integers of one size share a signed type. A complex element of a
// maximum counts as its magnitude, with the sign that the masks gave its real part.
template <class In, Map kMap>
struct Mapped {
  In element;
};
template <class In>
struct Ordered {
  In element;
};

template <class T> struct IsMapped : std::false_type {};
template <class In, Map map> struct IsMapped<Mapped<In, map>> : std::true_type {};
template <class In> struct IsMapped<Ordered<In>> : std::true_type {};
// True if bit masks are applied to elements on load, a word at a time.
template <class T> struct IsMasked : std::false_type {};
template <class In> struct IsMasked<Mapped<In, Map::value>> : std::true_type {};
template <class In> struct IsMasked<Mapped<In, Map::nonzero>> : std::true_type {};
template <class In> struct IsMasked<Ordered<In>> : std::true_type {};

template <class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc addend(Ordered<In> x) {
  if constexpr (IsComplex<In>::value) return {copysignf(magnitude(x.element), x.element.re)};
  else return addend<Acc>(x.element);
}
template <class Acc, class In, Map map>
GPUREDUCE_HOST_DEVICE Acc addend(Mapped<In, map> x) {
  return mapped<map, Acc>(x.element);
}

}  // namespace gpureduce
