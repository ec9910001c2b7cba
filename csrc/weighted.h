// Weighted sums: the sum of the products of two inputs, as a canonical problem. Pure C++: no torch, no CUDA.
#pragma once

#include "engine.h"
#include "finish.h"
#include "nest.h"

namespace gpureduce::weighted {

// A dim that neither input has to have in memory: strides are in elements, and 0 where an input is broadcast.
struct Dim {
  int64_t size, self, weight, out;  // `out` is of kept dims alone
};

struct InputDim {
  int64_t size, self, weight, out;
  bool reduced;
};

// Dims of size 1 are gone, and neighbours that one stride of each tensor can walk are merged. `reduced` stands in the
// contract's element order, which is that of `self`; the last of `kept` is the fastest in the memory of the larger input.
struct Problem {
  int64_t outputs = 1;
  int64_t length = 1;
  DimList<Dim> kept, reduced;
};

// Throws std::invalid_argument when more than kMaxRank dims stay apart.
Problem make_problem(const InputDim* dims, size_t rank);

// Whether neighbours in memory belong to different outputs, in the larger input.
bool has_columns(const Problem& problem);

struct Input {
  const void* data;  // includes the storage offset
  DType dtype;
  bool negate;  // a lazily negated view
};

// Everything that a backend needs to know.
struct Reduction {
  Problem problem;
  Input self, weight;
  void* output;
  DType out;
  Accumulator product;      // the type of the two factors and of their product: f32, f64 or i64
  Accumulator accumulator;  // the same, or i64 for a result of integers from floating products
  bool nonzero;             // a product counts as 1 if it is not zero: for a result of bool
  static constexpr Finish finish = Finish::none;

  ResultPath path() const {
    if (!is_native(accumulator, out)) return ResultPath::joined;
    return info(out).size == size_of(accumulator) ? ResultPath::raw : ResultPath::native;
  }
};

inline Accumulator product_of(DType self, DType weight, DType out) {
  const bool integers = info(self).kind == Kind::integer && info(weight).kind == Kind::integer;
  if (integers) return info(out).kind == Kind::integer ? Accumulator::i64 : Accumulator::f64;
  const bool wide = self == DType::Double || weight == DType::Double || out == DType::Double;
  return wide ? Accumulator::f64 : Accumulator::f32;
}

inline Accumulator accumulator_of(Accumulator product, DType out) {
  return info(out).kind == Kind::integer ? Accumulator::i64 : product;
}

// A factor: exact, but for integers beyond the digits of a floating type, which are rounded to the nearest.
template <class Product, class In>
GPUREDUCE_HOST_DEVICE Product factor(In x) {
  if constexpr (std::is_same_v<In, Boolean>) return static_cast<Product>(x.bits != 0 ? 1 : 0);
  else return addend<Product>(x);
}

// The same of an element of a lazily negated view.
template <class Product, class In>
GPUREDUCE_HOST_DEVICE Product negated_factor(In x) {
  if constexpr (std::is_integral_v<In>) return factor<Product>(static_cast<In>(0 - static_cast<uint64_t>(x)));
  else if constexpr (std::is_same_v<In, Boolean>) return factor<Product>(x);
  else return -factor<Product>(x);
}

// Rounded once, or modulo 2^64.
GPUREDUCE_HOST_DEVICE float times(float a, float b) { return a * b; }
GPUREDUCE_HOST_DEVICE double times(double a, double b) { return a * b; }
GPUREDUCE_HOST_DEVICE int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// What is added for a product.
template <class Acc, class Product>
GPUREDUCE_HOST_DEVICE Acc counted(Product product, bool nonzero) {
  if constexpr (std::is_same_v<Acc, Product> && !std::is_integral_v<Acc>) return product;
  else return nonzero ? static_cast<Acc>(product != 0) : addend<Acc>(product);
}

// A nest whose offsets are those of the inputs: `in` is of self, `out` of weight.
template <int kCapacity>
Nest<kCapacity> input_nest(const DimList<Dim>& dims, int64_t count) {
  return nest_of<kCapacity>(dims, count, [](auto& n, const Dim& d) { n.add(d.size, d.self, d.weight); });
}

// A nest whose `in` is of self, and whose `out` is the result's.
template <int kCapacity>
Nest<kCapacity> output_nest(const Problem& p) {
  return nest_of<kCapacity>(p.kept, p.outputs, [](auto& n, const Dim& d) { n.add(d.size, d.self, d.out); });
}

}  // namespace gpureduce::weighted
