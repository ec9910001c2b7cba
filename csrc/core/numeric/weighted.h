// Weighted sums: the products of the elements of two inputs, each rounded once. Pure C++: no torch, no CUDA.
#pragma once

#include "map.h"

namespace gpureduce {

// Two elements whose product is summed. Planners see one element of twice the larger one's size.
template <class A, class B>
struct Factors {
  A first;
  B second;
};

namespace weighted {

inline Accumulator product_of(DType self, DType weight, DType out) {
  const bool integers = info(self).kind == Kind::integer && info(weight).kind == Kind::integer;
  if (integers) return info(out).kind == Kind::integer ? Accumulator::i64 : Accumulator::f64;
  const bool wide = self == DType::Double || weight == DType::Double || out == DType::Double;
  return wide ? Accumulator::f64 : Accumulator::f32;
}

inline Accumulator accumulator_of(Accumulator product, DType out) {
  return info(out).kind == Kind::integer ? Accumulator::i64 : product;
}

// An element as a factor. It is exact, except that integers with more digits than a floating type are rounded to nearest.
template <class Product, class In>
GPUREDUCE_HOST_DEVICE Product factor(In x) {
  if constexpr (std::is_same_v<In, Boolean>) return static_cast<Product>(x.bits != 0 ? 1 : 0);
  else return addend<Product>(x);
}

// The factor of an element of a lazily negated view.
template <class Product, class In>
GPUREDUCE_HOST_DEVICE Product negated_factor(In x) {
  if constexpr (std::is_integral_v<In>) return factor<Product>(static_cast<In>(0 - static_cast<uint64_t>(x)));
  else if constexpr (std::is_same_v<In, Boolean>) return factor<Product>(x);
  else return -factor<Product>(x);
}

// Rounds once; integers wrap modulo 2^64.
GPUREDUCE_HOST_DEVICE float times(float a, float b) { return a * b; }
GPUREDUCE_HOST_DEVICE double times(double a, double b) { return a * b; }
GPUREDUCE_HOST_DEVICE int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// A product as an addend. `truth`: 1 if it is not zero.
template <class Acc, class Product>
GPUREDUCE_HOST_DEVICE Acc counted(Product product, bool truth) {
  if constexpr (std::is_same_v<Acc, Product> && !std::is_integral_v<Acc>) return product;
  else return truth ? static_cast<Acc>(product != 0) : addend<Acc>(product);
}

// True if kernels are compiled for these factors. The first input is the larger one, so a bool mask is the second.
constexpr bool is_compiled(DType first, DType second, Accumulator to) {
  const bool floats = first == DType::Float || first == DType::Half || first == DType::BFloat16;
  const bool halves = second == DType::Half || second == DType::BFloat16;
  if (to == Accumulator::f32 && floats)
    return second == DType::Float || second == DType::Bool || (halves && (first == DType::Float || first == second));
  if (to == Accumulator::f64) return first == DType::Double && second == DType::Double;
  return to == Accumulator::i64 && first == DType::Int && second == DType::Int;
}

}  // namespace weighted

template <class Acc, class A, class B>
GPUREDUCE_HOST_DEVICE Acc addend(Factors<A, B> x) {
  return weighted::times(weighted::factor<Acc>(x.first), weighted::factor<Acc>(x.second));
}

}  // namespace gpureduce
