// The operations. A map is applied to each element, combine joins two accumulators, and finish is applied to the last one.
// All operations take an output's elements in the contract's order. Schemas, backends, autograd, vmap, autocast and the rest
// are registered for each row of this table.
#pragma once

#include <cstdint>

#include "numeric/exponents.h"
#include "numeric/finish.h"

namespace gpureduce {

enum class Combine : uint8_t { sum, largest, product };

// The inputs that an operation takes; the dtype of its result:
// sum    any; the input's dtype (int64 for integers, float32 for float8), or dtype=
// mean   any; as sum, but only floating or complex results
// real   real; as sum, but floating inputs have only floating results
// norm   floating or complex; the input's real type, or the real type of dtype=
// same   real; the input's dtype
// count  any; int64
// truth  any; bool, but uint8 for uint8
// log    real; the input's dtype (torch's default dtype for integers, float32 for float8), or dtype=
enum class Typing : uint8_t { sum, mean, real, norm, same, count, truth, log };

// Each row: name, typing, map, combine, finish, and true if torch.autocast makes the result float32 on CUDA (torch lists these
// operations in AT_FORALL_FP32_SET_OPT_DTYPE and AT_FORALL_FP32; its list for the CPU has only products). Names that begin with
// _ are internal: operations whose public function has no dtype=; one norm per power (norm.cpp chooses); the product of all
// non-zero elements, for gradients; sums of powers without a root (_powsum); and roots of sums of such powers (_root).
#define GPUREDUCE_OPERATIONS(X)                                       \
  X(sum, sum, value, sum, none, true)                                 \
  X(mean, mean, value, sum, quotient, false)                          \
  X(prod, sum, factor, product, none, true)                           \
  X(_nonzero_prod, sum, cofactor, product, none, false)               \
  X(nansum, real, number, sum, none, false)                           \
  X(_amax, same, value, largest, none, false)                         \
  X(_amin, same, negative, largest, negative, false)                  \
  X(_any, truth, nonzero, sum, none, false)                           \
  X(_all, truth, nonzero, sum, all, false)                            \
  X(_count_nonzero, count, nonzero, sum, none, false)                 \
  X(_logsumexp, log, exponent, sum, logarithm, true)                  \
  X(_norm_0, norm, nonzero, sum, none, true)                          \
  X(_norm_1, norm, magnitude, sum, none, true)                        \
  X(_norm_2, norm, square, sum, square_root, true)                    \
  X(_norm_3, norm, cube, sum, cube_root, true)                        \
  X(_norm_inf, norm, magnitude, largest, none, true)                  \
  X(_norm_neg_inf, norm, negative_magnitude, largest, negative, true) \
  X(_powsum_2, norm, square, sum, none, false)                        \
  X(_powsum_3, norm, cube, sum, none, false)                          \
  X(_root_2, norm, value, sum, square_root, false)                    \
  X(_root_3, norm, value, sum, cube_root, false)

enum class Operation : uint8_t {
#define GPUREDUCE_OPERATION(name, ...) name,
  GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
};

struct OperationInfo {
  const char* name;
  Typing typing;
  Map map;
  Combine combine;
  Finish finish;
  bool autocasts;

  constexpr bool is_norm() const { return typing == Typing::norm; }
  // True if dtype= may choose any result dtype. The dtype of `out` then chooses, too.
  constexpr bool has_dtype() const {
    return typing == Typing::sum || typing == Typing::mean || typing == Typing::real || typing == Typing::log;
  }
  // True if exact sums have it, too: as a correctly rounded sum of the elements or of their squares, or as its root.
  constexpr bool has_exact() const {
    const bool elements = (map == Map::value || map == Map::number) &&
                          (typing == Typing::sum || typing == Typing::mean || typing == Typing::real);
    return combine == Combine::sum && (elements || map == Map::square);
  }
  constexpr bool has_gradient() const { return typing != Typing::count && typing != Typing::truth; }
  constexpr bool autocasts_on_cpu() const { return autocasts && combine == Combine::product; }
  // True if the gradient depends on the input's elements, or on the result. Autograd then saves them.
  constexpr bool keeps_input() const {
    return typing == Typing::norm || typing == Typing::same || typing == Typing::real || combine == Combine::product ||
           map == Map::exponent;
  }
  constexpr bool keeps_result() const {
    return combine == Combine::largest || map == Map::exponent || (is_norm() && finish != Finish::none);
  }
};

constexpr OperationInfo info(Operation op) {
  constexpr OperationInfo table[] = {
#define GPUREDUCE_OPERATION(name, typing, map, combine, finish, autocasts) \
  {#name, Typing::typing, Map::map, Combine::combine, Finish::finish, autocasts},
      GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
  };
  return table[static_cast<int>(op)];
}

constexpr const char* name_of(Operation op) { return info(op).name; }

// The accumulator of an operation on elements of `in` with a result of `out`. For a sum of complex numbers with a real result,
// the caller passes the dtype of the real part as `in`.
inline Accumulator accumulator_of(Operation op, DType in, DType out) {
  const OperationInfo row = info(op);
  if (row.map == Map::nonzero) return Accumulator::i64;
  const Accumulator own = info(in).accumulator;
  if (row.combine == Combine::product) {
    if (info(out).kind == Kind::integer) return Accumulator::product_i64;
    const bool wide = out == DType::Double || own != Accumulator::f32;  // for integers, too
    return wide ? Accumulator::product_f64 : Accumulator::product_f32;
  }
  if (row.typing == Typing::same) return largest_of(info(in));
  if (row.map == Map::exponent) return exponents::accumulator_of(in);
  if (!row.is_norm()) return accumulator_of(in, out, out == DType::Bool ? Map::nonzero : Map::value);
  const bool wide = out == DType::Double || own == Accumulator::f64 || own == Accumulator::c128;
  if (row.combine == Combine::largest) return wide ? Accumulator::largest_f64 : Accumulator::largest_f32;
  return wide ? Accumulator::f64 : Accumulator::f32;
}

// The canonical form of an operation on elements of `in` with a result of `out`: several operations share one.
struct Canonical {
  DType in, out;
  Map map;
  Finish finish;
  Accumulator accumulator;
  bool real_parts;  // sums the real parts of complex elements; `in` is the dtype of a part
};
inline Canonical canonical(Operation op, DType in, DType out) {
  const OperationInfo row = info(op);
  Canonical c{in, out, row.map, row.finish, {}, false};
  if (out == DType::Bool && row.has_dtype()) c.map = Map::nonzero;  // as a bool, a sum is true if any element is not 0
  if (c.map == Map::number && info(in).kind == Kind::integer) c.map = Map::value;
  if (info(in).kind == Kind::complex && info(out).kind != Kind::complex && c.map == Map::value) {
    c.in = component_of(in);
    c.real_parts = true;
  }
  c.accumulator = accumulator_of(op, c.in, out);
  // A maximum of bools is any(). A minimum of bools, and a product from or to bool, is all(). Any non-zero byte is true.
  const bool product = c.accumulator == Accumulator::product_i64;
  const bool of_bools = c.in == DType::Bool && (row.typing == Typing::same || product);
  if (of_bools || (product && out == DType::Bool)) {
    c.map = Map::nonzero;
    c.finish = product || c.finish == Finish::negative ? Finish::all : Finish::none;
    c.accumulator = Accumulator::i64;
  }
  return c;
}

}  // namespace gpureduce
