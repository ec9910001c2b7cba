// The operations: what an element becomes (map), how two of them become one (combine), and what becomes of the last (finish).
// All of them take an output's elements in the contract's order. Schemas, backends, autograd, vmap, autocast and the rest are
// registered for each row of this table.
#pragma once

#include <cstdint>

#include "finish.h"

namespace gpureduce {

enum class Combine : uint8_t { sum, largest };

// Each row has a name, map, combine and finish, and whether torch.autocast makes the result float32 on CUDA (torch lists those
// in AT_FORALL_FP32_SET_OPT_DTYPE and AT_FORALL_FP32). Those that begin with _ are the norms, a power each, of which norm.cpp
// chooses; and the norms of numbers that are sums of powers already.
#define GPUREDUCE_OPERATIONS(X)                                  \
  X(sum, value, sum, none, true)                                 \
  X(mean, value, sum, quotient, false)                           \
  X(_norm_0, nonzero, sum, none, true)                           \
  X(_norm_1, magnitude, sum, none, true)                         \
  X(_norm_2, square, sum, square_root, true)                     \
  X(_norm_3, cube, sum, cube_root, true)                         \
  X(_norm_inf, magnitude, largest, magnitude, true)              \
  X(_norm_neg_inf, negative_magnitude, largest, magnitude, true) \
  X(_powsum_2, square, sum, none, false)                         \
  X(_powsum_3, cube, sum, none, false)                           \
  X(_root_2, value, sum, square_root, false)                     \
  X(_root_3, value, sum, cube_root, false)

enum class Operation : uint8_t {
#define GPUREDUCE_OPERATION(name, ...) name,
  GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
};

struct OperationInfo {
  const char* name;
  Map map;
  Combine combine;
  Finish finish;
  bool autocasts;

  // Of real results, for floating and complex inputs alone.
  constexpr bool is_norm() const { return map != Map::value || finish == Finish::square_root || finish == Finish::cube_root; }
};

constexpr OperationInfo info(Operation op) {
  constexpr OperationInfo table[] = {
#define GPUREDUCE_OPERATION(name, map, combine, finish, autocasts) \
  {#name, Map::map, Combine::combine, Finish::finish, autocasts},
      GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
  };
  return table[static_cast<int>(op)];
}

constexpr const char* name_of(Operation op) { return info(op).name; }

// The accumulator of an operation on elements of `in` with a result of `out`. A complex input of a sum with a real result is
// the caller's to turn into its real part first.
inline Accumulator accumulator_of(Operation op, DType in, DType out) {
  const OperationInfo row = info(op);
  if (!row.is_norm()) return accumulator_of(in, out, out == DType::Bool ? Map::nonzero : Map::value);
  if (row.map == Map::nonzero) return Accumulator::i64;
  const Accumulator own = info(in).accumulator;
  const bool wide = out == DType::Double || own == Accumulator::f64 || own == Accumulator::c128;
  if (row.combine == Combine::largest) return wide ? Accumulator::largest_f64 : Accumulator::largest_f32;
  return wide ? Accumulator::f64 : Accumulator::f32;
}

}  // namespace gpureduce
