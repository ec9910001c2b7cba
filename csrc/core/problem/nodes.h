// Nodes: accumulators that ranks exchange as tensors. How they are finished, on the CPU and on GPUs.
#pragma once

#include "../numeric/variance.h"
#include "../operation.h"

namespace gpureduce {

// The operation whose results are the nodes of `op`: it has the same map and combine but no finish, and is a norm if `op` is
// one. Maxima and minima need no other operation, since the maximum of several results is a result.
constexpr Operation node_of(Operation op) {
  const auto makes_nodes = [](const OperationInfo& row) { return row.finish == Finish::none && row.typing != Typing::truth; };
  const OperationInfo row = info(op);
  if (row.combine == Combine::largest || makes_nodes(row)) return op;
#define GPUREDUCE_OPERATION(name, ...)                                                                                \
  if (const OperationInfo other = info(Operation::name);                                                              \
      other.map == row.map && other.combine == row.combine && other.is_norm() == row.is_norm() && makes_nodes(other)) \
    return Operation::name;
  GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
  return op;
}

// The finish to apply to the last node.
constexpr Finish finish_of_nodes(Operation op) { return info(op).combine == Combine::largest ? Finish::none : info(op).finish; }

// Nodes of an accumulator's type, one per result.
struct Nodes {
  const void* data;
  Accumulator type;  // a sum

  template <class Acc>
  GPUREDUCE_HOST_DEVICE const Acc& at(int64_t index) const {
    return static_cast<const Acc*>(data)[index];
  }
};

template <class Acc>
GPUREDUCE_HOST_DEVICE Complex<double> widened(Acc x) {
  if constexpr (IsComplex<Acc>::value) return {static_cast<double>(x.re), static_cast<double>(x.im)};
  else return {static_cast<double>(x), 0};
}

template <class Acc>
GPUREDUCE_HOST_DEVICE Complex<double> finished_node(Acc node, Finish finish, int64_t count) {
  return finish == Finish::none ? widened(node) : widened(finished(node, finish, count));
}

// Node `index`, of `count` elements, finished but not yet rounded. The result's type holds every accumulator exactly, except an
// int64 with Finish::none.
GPUREDUCE_HOST_DEVICE Complex<double> finished_node(const Nodes& nodes, int64_t index, Finish finish, int64_t count) {
  switch (nodes.type) {
    case Accumulator::f32: return finished_node(nodes.at<float>(index), finish, count);
    case Accumulator::f64: return finished_node(nodes.at<double>(index), finish, count);
    case Accumulator::i64: return finished_node(nodes.at<int64_t>(index), finish, count);
    case Accumulator::c64: return finished_node(nodes.at<Complex<float>>(index), finish, count);
    default: return finished_node(nodes.at<Complex<double>>(index), finish, count);
  }
}

// Writes the result of a node as element `index` of `out`, of dtype `t`. Rounding to any dtype is a lot of code, so it is
// compiled once: an int64 for a float result becomes a double that rounds the same.
GPUREDUCE_HOST_DEVICE void store_node(const Nodes& nodes, int64_t index, Finish finish, int64_t count, void* out, DType t) {
  Complex<double> value;
  if (nodes.type != Accumulator::i64 || finish != Finish::none) {
    value = finished_node(nodes, index, finish, count);
  } else {
    const int64_t whole = nodes.at<int64_t>(index);
    switch (t) {
      case DType::Char:
      case DType::Byte: static_cast<uint8_t*>(out)[index] = static_cast<uint8_t>(whole); return;
      case DType::Short:
      case DType::UInt16: static_cast<uint16_t*>(out)[index] = static_cast<uint16_t>(whole); return;
      case DType::Int:
      case DType::UInt32: static_cast<uint32_t*>(out)[index] = static_cast<uint32_t>(whole); return;
      case DType::Long:
      case DType::UInt64: static_cast<int64_t*>(out)[index] = whole; return;
      case DType::Double:
      case DType::ComplexDouble: value = widened(whole); break;
      default: value = widened(sticky_double(whole));
    }
  }
  store(out, index, t, value);
}

}  // namespace gpureduce
