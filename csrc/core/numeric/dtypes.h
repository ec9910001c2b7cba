// The dtypes, one row each, and their conversions to and from the accumulators. Pure C++, shared by CPU and CUDA.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../order.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace gpureduce {

// Storage types of small floats. They hold only bits, so that they mean the same to every compiler.
struct Half { uint16_t bits; };
struct BFloat16 { uint16_t bits; };
struct Float8_e4m3fn { uint8_t bits; };
struct Float8_e5m2 { uint8_t bits; };
struct Boolean { uint8_t bits; };  // any non-zero byte is true

template <class T>
struct alignas(2 * sizeof(T)) Complex {
  T re, im;
};

template <class T>
GPUREDUCE_HOST_DEVICE Complex<T> operator+(Complex<T> a, Complex<T> b) {
  return {a.re + b.re, a.im + b.im};
}

// Accumulators whose + is no addition: it joins two of them.

// The larger number, or NaN if either is NaN; +0 is larger than -0. Any order gives the same bits. Unsigned integers are kept
// as signed ones of the same order, with the top bit flipped (ordered()).
template <class T>
struct Largest {
  T value;
};

template <class T>
struct Product {
  T value;
};

// For a variance: the sum of differences from one number, and the sum of their squares (variance.h).
struct Moments { double sum, squares; };
GPUREDUCE_HOST_DEVICE Moments operator+(Moments a, Moments b) { return {a.sum + b.sum, a.squares + b.squares}; }

// The place of an element in an order, and its index: the larger place, then the smaller index. Any order gives the same bits
// (indices.h).
struct Indexed { int64_t place, index; };
GPUREDUCE_HOST_DEVICE Indexed operator+(Indexed a, Indexed b) {
  return a.place > b.place || (a.place == b.place && a.index < b.index) ? a : b;
}

// The unsigned integer type of kSize bytes.
template <int kSize>
using UnsignedOf =
    std::conditional_t<kSize == 1, uint8_t,
                       std::conditional_t<kSize == 2, uint16_t, std::conditional_t<kSize == 4, uint32_t, uint64_t>>>;

template <class T> struct IsLargest : std::false_type {};
template <class T> struct IsLargest<Largest<T>> : std::true_type {};
template <class T> struct IsProduct : std::false_type {};
template <class T> struct IsProduct<Product<T>> : std::true_type {};

enum class Kind : uint8_t { integer, floating, complex };

// The accumulators of the contract, one row each: name, type, and the name that users see.
#define GPUREDUCE_ACCUMULATORS(X)            \
  X(f32, float, "float32")                   \
  X(f64, double, "float64")                  \
  X(i64, int64_t, "int64")                   \
  X(c64, Complex<float>, "complex64")        \
  X(c128, Complex<double>, "complex128")     \
  X(largest_f32, Largest<float>, "float32")  \
  X(largest_f64, Largest<double>, "float64") \
  X(largest_i64, Largest<int64_t>, "int64")  \
  X(product_f32, Product<float>, "float32")  \
  X(product_f64, Product<double>, "float64") \
  X(product_i64, Product<int64_t>, "int64")  \
  X(moments, Moments, "float64")             \
  X(indexed, Indexed, "int64")

enum class Accumulator : uint8_t {
#define GPUREDUCE_ENUMERATOR(name, ...) name,
  GPUREDUCE_ACCUMULATORS(GPUREDUCE_ENUMERATOR)
#undef GPUREDUCE_ENUMERATOR
};

// One row per dtype: name (as in at::ScalarType), storage type, kind, default accumulator, accumulator for a result in double
// precision, and the family of kernels that its sums are compiled with. Sums of rare dtypes have the reduced set
// (is_plain_sum() in map.h).
#define GPUREDUCE_DTYPES(X)                                            \
  X(Float, float, floating, f32, f64, single)                          \
  X(Half, gpureduce::Half, floating, f32, f64, half)                   \
  X(BFloat16, gpureduce::BFloat16, floating, f32, f64, half)           \
  X(Float8_e4m3fn, gpureduce::Float8_e4m3fn, floating, f32, f64, rare) \
  X(Float8_e5m2, gpureduce::Float8_e5m2, floating, f32, f64, rare)     \
  X(Double, double, floating, f64, f64, single)                        \
  X(Bool, gpureduce::Boolean, integer, i64, i64, byte)                 \
  X(Char, int8_t, integer, i64, i64, byte)                             \
  X(Byte, uint8_t, integer, i64, i64, byte)                            \
  X(Short, int16_t, integer, i64, i64, integer)                        \
  X(UInt16, uint16_t, integer, i64, i64, rare)                         \
  X(Int, int32_t, integer, i64, i64, integer)                          \
  X(UInt32, uint32_t, integer, i64, i64, rare)                         \
  X(Long, int64_t, integer, i64, i64, integer)                         \
  X(UInt64, uint64_t, integer, i64, i64, integer)                      \
  X(ComplexHalf, Complex<gpureduce::Half>, complex, c64, c128, rare)   \
  X(ComplexFloat, Complex<float>, complex, c64, c128, rare)            \
  X(ComplexDouble, Complex<double>, complex, c128, c128, rare)

enum class DType : uint8_t {
#define GPUREDUCE_ENUMERATOR(name, type, kind, accumulator, wide, family) name,
  GPUREDUCE_DTYPES(GPUREDUCE_ENUMERATOR)
#undef GPUREDUCE_ENUMERATOR
};

// The maps, applied to an element before it is joined to others. value, factor and exponent (of e) keep the value. cofactor:
// 1 instead of 0. number: 0 instead of NaN. nonzero: 1 if it is not 0, otherwise 0. negative reverses the order.
#define GPUREDUCE_MAPS(X) \
  X(value)                \
  X(factor)               \
  X(cofactor)             \
  X(number)               \
  X(nonzero)              \
  X(negative)             \
  X(magnitude)            \
  X(negative_magnitude)   \
  X(square)               \
  X(cube)                 \
  X(exponent)

enum class Map : uint8_t {
#define GPUREDUCE_ENUMERATOR(name) name,
  GPUREDUCE_MAPS(GPUREDUCE_ENUMERATOR)
#undef GPUREDUCE_ENUMERATOR
};

constexpr const char* name_of(Map map) {
  constexpr const char* names[] = {
#define GPUREDUCE_NAME(name) #name,
      GPUREDUCE_MAPS(GPUREDUCE_NAME)
#undef GPUREDUCE_NAME
  };
  return names[static_cast<int>(map)];
}

enum class Family : uint8_t { single, half, byte, integer, rare };

struct DTypeInfo {
  const char* name;
  int size;
  Kind kind;
  Accumulator accumulator, wide;
  Family family;

  constexpr bool is_rare() const { return family == Family::rare; }
};

inline constexpr DTypeInfo kDTypes[] = {
#define GPUREDUCE_INFO(name, type, kind, accumulator, wide, family) \
  {#name, sizeof(type), Kind::kind, Accumulator::accumulator, Accumulator::wide, Family::family},
    GPUREDUCE_DTYPES(GPUREDUCE_INFO)
#undef GPUREDUCE_INFO
};
constexpr const DTypeInfo& info(DType t) { return kDTypes[static_cast<int>(t)]; }

GPUREDUCE_HOST_DEVICE bool is_unsigned(DType t) {
  switch (t) {
#define GPUREDUCE_CASE(name, type, ...) \
  case DType::name: return std::is_unsigned_v<type> || std::is_same_v<type, Boolean>;
    GPUREDUCE_DTYPES(GPUREDUCE_CASE)
#undef GPUREDUCE_CASE
  }
  return false;
}

inline int size_of(Accumulator a) {
  constexpr int sizes[] = {
#define GPUREDUCE_SIZE(name, type, text) sizeof(type),
      GPUREDUCE_ACCUMULATORS(GPUREDUCE_SIZE)
#undef GPUREDUCE_SIZE
  };
  return sizes[static_cast<int>(a)];
}

inline const char* name_of(Accumulator a) {
  constexpr const char* names[] = {
#define GPUREDUCE_NAME(name, type, text) text,
      GPUREDUCE_ACCUMULATORS(GPUREDUCE_NAME)
#undef GPUREDUCE_NAME
  };
  return names[static_cast<int>(a)];
}

// The dtype of a complex number's parts; a real dtype is returned as it is.
constexpr DType component_of(DType t) {
  switch (t) {
    case DType::ComplexHalf: return DType::Half;
    case DType::ComplexFloat: return DType::Float;
    case DType::ComplexDouble: return DType::Double;
    default: return t;
  }
}

// The accumulator of the contract for elements of `in` and a result of `out`. For complex elements and a real result, the
// caller passes the dtype of the real part.
inline Accumulator accumulator_of(DType in, DType out, Map map) {
  const DTypeInfo &i = info(in), &o = info(out);
  if (map == Map::nonzero || o.kind == Kind::integer) return Accumulator::i64;
  if (i.kind == Kind::integer) return i.size == 8 ? Accumulator::f64 : Accumulator::i64;
  bool wide = out == DType::Double || out == DType::ComplexDouble;
  return wide ? i.wide : i.accumulator;
}

// True if the reducing kernels round to this dtype themselves. Rounding to any dtype is a lot of code, which only the join
// kernel holds.
inline bool is_native(Accumulator a, DType out) {
  switch (a) {
    case Accumulator::f32:
    case Accumulator::largest_f32:
    case Accumulator::product_f32: return out == DType::Float || out == DType::BFloat16 || out == DType::Half;
    case Accumulator::f64:
    case Accumulator::largest_f64:
    case Accumulator::product_f64: return out == DType::Double;
    case Accumulator::i64:
    case Accumulator::largest_i64:
    case Accumulator::product_i64: return out == DType::Long;
    case Accumulator::c64: return out == DType::ComplexFloat;
    case Accumulator::c128: return out == DType::ComplexDouble;
    case Accumulator::moments:
      return out == DType::Float || out == DType::BFloat16 || out == DType::Half || out == DType::Double;
    case Accumulator::indexed: return out == DType::Long;
  }
  return false;
}

template <Accumulator A> struct AccumulatorType;
#define GPUREDUCE_TYPE(name, cpp, text) \
  template <> struct AccumulatorType<Accumulator::name> { using type = cpp; };
GPUREDUCE_ACCUMULATORS(GPUREDUCE_TYPE)
#undef GPUREDUCE_TYPE
template <Accumulator A> using Sum = typename AccumulatorType<A>::type;

// Calls `f` with a value of the accumulator's type.
template <class F>
auto with_accumulator(Accumulator a, F f) {
  switch (a) {
#define GPUREDUCE_CALL(name, type, text) \
  case Accumulator::name: return f(type{});
    GPUREDUCE_ACCUMULATORS(GPUREDUCE_CALL)
#undef GPUREDUCE_CALL
  }
  return f(float{});
}

template <class T> struct IsComplex : std::false_type {};
template <class T> struct IsComplex<Complex<T>> : std::true_type {};

// Bytes of the largest element that is usually converted to this accumulator at run time: a complex number of the same
// precision. (Larger elements occur in counts, whose accumulator is int64.)
template <class Acc>
constexpr int converted_bytes = 8;
template <>
inline constexpr int converted_bytes<double> = 16;
template <>
inline constexpr int converted_bytes<Moments> = 16;
template <>
inline constexpr int converted_bytes<Indexed> = 16;
template <template <class> class Holds>
constexpr int converted_bytes<Holds<double>> = 16;

// True for accumulators of two numbers, which have kernels of their own.
template <class Acc>
constexpr bool kIsTwo = std::is_same_v<Acc, Moments> || std::is_same_v<Acc, Indexed>;

// True for Largest and Product, which wrap one number.
template <class Acc>
constexpr bool kHolds = IsLargest<Acc>::value || IsProduct<Acc>::value;

// The number in a Largest or Product; other accumulators are returned as they are.
template <class Acc>
GPUREDUCE_HOST_DEVICE auto number(Acc x) {
  if constexpr (kHolds<Acc>) return x.value;
  else return x;
}
template <class Acc> using Number = decltype(number(Acc{}));

template <class T>
GPUREDUCE_HOST_DEVICE constexpr T lowest() {
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(-INFINITY);
  else return static_cast<T>(uint64_t{1} << (8 * sizeof(T) - 1));
}

// The identity, which stands for a missing lane: x + padding has the bits of x for every x (0.0 would turn -0.0 into 0.0).
template <class Acc>
GPUREDUCE_HOST_DEVICE Acc padding() {
  if constexpr (IsComplex<Acc>::value) {
    return {padding<decltype(Acc::re)>(), padding<decltype(Acc::re)>()};
  } else if constexpr (IsLargest<Acc>::value) {
    return {lowest<Number<Acc>>()};
  } else if constexpr (IsProduct<Acc>::value) {
    return {Number<Acc>(1)};
  } else if constexpr (std::is_same_v<Acc, Moments>) {
    return {-0.0, -0.0};
  } else if constexpr (std::is_same_v<Acc, Indexed>) {
    return {INT64_MIN, INT64_MAX};
  } else {
    return static_cast<Acc>(std::is_floating_point_v<Acc> ? -0.0 : 0.0);
  }
}

template <class To, class From>
GPUREDUCE_HOST_DEVICE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// The lowest number of an integer dtype, as a signed one at the same place in the order.
GPUREDUCE_HOST_DEVICE int64_t lowest_in_order(DType t) {
  switch (t) {
#define GPUREDUCE_CASE(name, type, ...) \
  case DType::name: return static_cast<int64_t>(~uint64_t{0} << (8 * (sizeof(type) > 8 ? 8 : sizeof(type)) - 1));
    GPUREDUCE_DTYPES(GPUREDUCE_CASE)
#undef GPUREDUCE_CASE
  }
  return 0;
}

// The accumulator of no elements, for a result of a dtype. A dtype without infinities has its own lowest number.
template <class Acc>
GPUREDUCE_HOST_DEVICE Acc of_none(DType t) {
  if constexpr (IsLargest<Acc>::value && std::is_integral_v<Number<Acc>>) return {lowest_in_order(t)};
  else if constexpr (IsLargest<Acc>::value) return t == DType::Float8_e4m3fn ? Acc{-448} : padding<Acc>();
  else if constexpr (kHolds<Acc>) return padding<Acc>();
  else return Acc{};
}

// Flips the top bit: an unsigned integer becomes the bits of the signed integer at the same place in the order, and back.
template <class T>
GPUREDUCE_HOST_DEVICE T ordered(T x) {
  return x ^ static_cast<T>(T{1} << (8 * sizeof(T) - 1));
}

template <class T>
GPUREDUCE_HOST_DEVICE Largest<T> operator+(Largest<T> a, Largest<T> b) {
  if constexpr (std::is_integral_v<T>) {
    return a.value > b.value ? a : b;
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, float>) {  // one instruction does all this
      float larger;
      asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a.value), "f"(b.value));
      return {larger};
    }
#endif
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    if (a.value == b.value) return {bit_cast<T>(bit_cast<Bits>(a.value) & bit_cast<Bits>(b.value))};
    return a.value > b.value || a.value != a.value ? a : b;
  }
}

template <class T>
GPUREDUCE_HOST_DEVICE Product<T> operator+(Product<T> a, Product<T> b) {
  if constexpr (std::is_integral_v<T>) return {static_cast<T>(static_cast<uint64_t>(a.value) * static_cast<uint64_t>(b.value))};
  else return {a.value * b.value};
}

// --- an element's exact value ---------------------------------------------------------------------------------------------

GPUREDUCE_HOST_DEVICE float value(float x) { return x; }
GPUREDUCE_HOST_DEVICE double value(double x) { return x; }
GPUREDUCE_HOST_DEVICE float value(BFloat16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Widens a small float without branches. Its exponent and mantissa, moved to a float32's place, are the value times a power of
// two; the scaling is exact, for subnormals too. A number of kLimit or more was infinity or NaN, and gets their float32
// exponent.
template <int kExponentBits, int kMantissaBits>
GPUREDUCE_HOST_DEVICE float widen(uint32_t bits) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr uint32_t kSign = 1u << (kExponentBits + kMantissaBits);
  constexpr uint32_t kScale = static_cast<uint32_t>(127 + 127 - kBias) << 23;
  constexpr uint32_t kLimit = static_cast<uint32_t>(127 + kBias + 1) << 23;
  uint32_t magnitude = (bits & (kSign - 1)) << (23 - kMantissaBits);
  uint32_t scaled = bit_cast<uint32_t>(bit_cast<float>(magnitude) * bit_cast<float>(kScale));
  if (scaled >= kLimit) scaled |= 0x7f800000u;
  return bit_cast<float>(scaled | (bits & kSign) << (31 - kExponentBits - kMantissaBits));
}

GPUREDUCE_HOST_DEVICE float value(Half x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x.bits));
#else
  return widen<5, 10>(x.bits);
#endif
}

GPUREDUCE_HOST_DEVICE float value(Float8_e5m2 x) { return value(Half{static_cast<uint16_t>(x.bits << 8)}); }

GPUREDUCE_HOST_DEVICE float value(Float8_e4m3fn x) {
#ifdef __CUDA_ARCH__
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
#else
  float v = widen<4, 3>(x.bits & 0xff);  // no infinity here: 256 to 448 are numbers, only 0x7f is NaN
  uint32_t magnitude = x.bits & 0x7fu;
  uint32_t exponent_and_mantissa = (magnitude << 20) + (120u << 23);
  uint32_t wide = magnitude == 0x7f ? 0x7fc00000u : exponent_and_mantissa;
  uint32_t bits = magnitude >= 0x78 ? (wide | (x.bits & 0x80u) << 24) : bit_cast<uint32_t>(v);
  return bit_cast<float>(bits);
#endif
}

GPUREDUCE_HOST_DEVICE int64_t value(Boolean x) { return x.bits != 0; }
template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
GPUREDUCE_HOST_DEVICE T value(T x) {
  return x;
}
template <class T>
GPUREDUCE_HOST_DEVICE auto value(Complex<T> x) -> Complex<decltype(value(x.re))> {
  return {value(x.re), value(x.im)};
}

// Converts a float to an integer modulo 2^64, rounding towards zero as torch does. NaN and numbers outside [-2^63, 2^64) give
// -2^63 on every device.
GPUREDUCE_HOST_DEVICE int64_t to_integer(double x) {
  if (x >= -9223372036854775808.0 && x < 9223372036854775808.0) return static_cast<int64_t>(x);
  if (x >= 9223372036854775808.0 && x < 18446744073709551616.0) return static_cast<int64_t>(static_cast<uint64_t>(x));
  return INT64_MIN;
}

// --- an element as an addend: exact, except 64-bit integers to float64 -----------------------------------------------------

template <class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc addend(In x) {
  auto v = value(x);
  using V = decltype(v);
  if constexpr (kHolds<Acc>) {
    return {addend<Number<Acc>>(x)};
  } else if constexpr (IsComplex<Acc>::value) {
    using Real = decltype(Acc::re);
    if constexpr (IsComplex<V>::value) return {static_cast<Real>(v.re), static_cast<Real>(v.im)};
    else return {static_cast<Real>(v), Real(0)};
  } else if constexpr (IsComplex<V>::value) {
    return addend<Acc>(v.re);
  } else if constexpr (std::is_integral_v<Acc> && std::is_floating_point_v<V>) {
    return to_integer(v);
  } else {
    return static_cast<Acc>(v);
  }
}

template <class Acc, class T>
GPUREDUCE_HOST_DEVICE Acc addend(Largest<T> x) {  // already an accumulator
  return x;
}
template <class Acc, class T>
GPUREDUCE_HOST_DEVICE Acc addend(Product<T> x) {
  return x;
}

template <class Acc>
GPUREDUCE_HOST_DEVICE Acc addend(Moments x) {
  return x;
}

template <class Acc>
GPUREDUCE_HOST_DEVICE Acc addend(Indexed x) {
  return x;
}

template <class In>
GPUREDUCE_HOST_DEVICE int64_t nonzero(In x) {
  auto v = value(x);
  if constexpr (IsComplex<decltype(v)>::value) return v.re != 0 || v.im != 0;
  else return v != 0;
}

// --- the one rounding of the result ---------------------------------------------------------------------------------------

// Rounds a double to the nearest small float, ties to even. It works on bits, so nothing is rounded twice and no rounding mode
// matters. kFinite: the format has no infinity, and larger numbers become NaN (float8_e4m3fn; torch up to 2.11 does the same,
// later versions saturate).
template <int kExponentBits, int kMantissaBits, bool kFinite = false>
GPUREDUCE_HOST_DEVICE uint32_t narrow(double x) {
  constexpr int kLowest = 2 - (1 << (kExponentBits - 1));  // exponent of the smallest normal number
  constexpr uint32_t kSign = 1u << (kExponentBits + kMantissaBits);
  constexpr uint32_t kInfinity = kFinite ? kSign - 1 : ((1u << kExponentBits) - 1) << kMantissaBits;
  constexpr uint32_t kNaN = kFinite ? kSign - 1 : kInfinity | 1u << (kMantissaBits - 1);
  uint64_t bits = bit_cast<uint64_t>(x);
  uint32_t sign = bits >> 63 ? kSign : 0;
  bits &= ~(1ull << 63);
  if (bits > 0x7ffull << 52) return sign | kNaN;
  if (bits == 0x7ffull << 52) return sign | kInfinity;
  int exponent = static_cast<int>(bits >> 52) - 1023;
  uint64_t mantissa = (bits & ((1ull << 52) - 1)) | 1ull << 52;
  int floor = exponent < kLowest ? kLowest : exponent;
  int shift = 52 - kMantissaBits + floor - exponent;
  if (shift > 53) return sign;  // below half of the smallest subnormal
  uint64_t rest = mantissa & ((1ull << shift) - 1), half = 1ull << (shift - 1);
  uint64_t rounded = mantissa >> shift;
  rounded += rest > half || (rest == half && (rounded & 1));
  uint64_t result = (static_cast<uint64_t>(floor - kLowest) << kMantissaBits) + rounded;
  return sign | (result > kInfinity ? kInfinity : static_cast<uint32_t>(result));
}

// The same from a float, without branches, so that loops vectorise.
GPUREDUCE_HOST_DEVICE BFloat16 to_bfloat16(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded)};
}
GPUREDUCE_HOST_DEVICE Half to_half(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;  // the addition rounds
  const uint32_t infinite = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const uint32_t finite = magnitude < 113u << 23 ? subnormal : normal;
  return {static_cast<uint16_t>((bits >> 16 & 0x8000) | (magnitude >= 0x477ff000 ? infinite : finite))};
}

// An int64 as a double. Its last bit is set if any bits were cut off ("round to odd"), so rounding it again to a small float
// gives the same as rounding the integer.
GPUREDUCE_HOST_DEVICE double sticky_double(int64_t v) {
  uint64_t magnitude = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  int shift = 0;
  while (magnitude >> shift >= 1ull << 53) ++shift;
  uint64_t kept = magnitude >> shift;
  kept |= (kept << shift) != magnitude;
  double d = static_cast<double>(kept) * static_cast<double>(1ull << shift);
  return v < 0 ? -d : d;
}
GPUREDUCE_HOST_DEVICE double sticky_double(double v) { return v; }

template <class Out, class Real>
GPUREDUCE_HOST_DEVICE Out round_to(Real v) {
  if constexpr (std::is_same_v<Out, Boolean>) {
    return {static_cast<uint8_t>(v != 0)};
#ifdef __CUDA_ARCH__
  } else if constexpr (std::is_same_v<Out, Half> && std::is_same_v<Real, float>) {
    return {__half_as_ushort(__float2half_rn(v))};
  } else if constexpr (std::is_same_v<Out, BFloat16> && std::is_same_v<Real, float>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(v))};
  } else if constexpr (std::is_same_v<Out, Half>) {
    return {__half_as_ushort(__double2half(sticky_double(v)))};
  } else if constexpr (std::is_same_v<Out, BFloat16>) {
    return {__bfloat16_as_ushort(__double2bfloat16(sticky_double(v)))};
#else
  } else if constexpr (std::is_same_v<Out, Half> && std::is_same_v<Real, float>) {
    return to_half(v);
  } else if constexpr (std::is_same_v<Out, BFloat16> && std::is_same_v<Real, float>) {
    return to_bfloat16(v);
  } else if constexpr (std::is_same_v<Out, Half>) {
    return {static_cast<uint16_t>(narrow<5, 10>(sticky_double(v)))};
  } else if constexpr (std::is_same_v<Out, BFloat16>) {
    return {static_cast<uint16_t>(narrow<8, 7>(sticky_double(v)))};
#endif
  } else if constexpr (std::is_same_v<Out, Float8_e4m3fn>) {
    return {static_cast<uint8_t>(narrow<4, 3, true>(sticky_double(v)))};
  } else if constexpr (std::is_same_v<Out, Float8_e5m2>) {
    return {static_cast<uint8_t>(narrow<5, 2>(sticky_double(v)))};
  } else if constexpr (std::is_integral_v<Out> && std::is_floating_point_v<Real>) {
    return static_cast<Out>(to_integer(v));
  } else {
    return static_cast<Out>(v);
  }
}

template <class Out, class Acc>
GPUREDUCE_HOST_DEVICE Out result(Acc v) {
  if constexpr (std::is_same_v<Out, Acc>) {
    return v;
  } else if constexpr (std::is_same_v<Acc, Largest<int64_t>> && std::is_unsigned_v<Out>) {
    return ordered(static_cast<Out>(v.value));
  } else if constexpr (kHolds<Acc>) {
    return result<Out>(v.value);
  } else if constexpr (IsComplex<Out>::value) {
    using Real = decltype(Out::re);
    if constexpr (IsComplex<Acc>::value) return {round_to<Real>(v.re), round_to<Real>(v.im)};
    else return {round_to<Real>(v), Real{}};
  } else if constexpr (IsComplex<Acc>::value) {
    return round_to<Out>(v.re);
  } else {
    return round_to<Out>(v);
  }
}

// Rounds an accumulator to dtype `t` and writes it as element `index` of `out`.
template <class Acc>
GPUREDUCE_HOST_DEVICE void store(void* out, int64_t index, DType t, Acc v) {
  switch (t) {
#define GPUREDUCE_STORE(name, type, kind, accumulator, wide, family) \
  case DType::name: static_cast<type*>(out)[index] = result<type>(v); break;
    GPUREDUCE_DTYPES(GPUREDUCE_STORE)
#undef GPUREDUCE_STORE
  }
}

}  // namespace gpureduce
