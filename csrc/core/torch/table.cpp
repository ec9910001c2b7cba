// The table of operations for Python. torch_reduce/_operations.py reads it.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <string>

#include "../numeric/weighted.h"
#include "../problem/nodes.h"
#include "backend.h"
#include "dispatch.h"
#include "powers.h"

namespace gpureduce {

namespace {

const char* name_of(Typing typing) {
  constexpr const char* names[] = {"sum", "mean", "real", "norm", "same", "count", "truth", "log"};
  return names[static_cast<int>(typing)];
}

const char* name_of(Combine combine) {
  constexpr const char* names[] = {"sum", "largest", "product"};
  return names[static_cast<int>(combine)];
}

const char* name_of(Finish finish) {
  constexpr const char* names[] = {"none", "quotient", "square_root", "cube_root", "negative", "all", "logarithm"};
  return names[static_cast<int>(finish)];
}

std::string in_quotes(const std::string& text) { return '"' + text + '"'; }

std::string text_of(double ord) {
  if (ord == kInfinity) return "inf";
  return ord == -kInfinity ? "-inf" : std::to_string(static_cast<int>(ord));
}

// The operator that joins nodes as their + does.
std::string join_of(Operation op) {
  switch (info(op).combine) {
    case Combine::largest: return name_of(op);
    case Combine::product: return name_of(Operation::prod);
    default: return name_of(Operation::sum);
  }
}

// True if it only serves other operations: roots finish sums of powers.
bool is_part(Operation op) { return info(op).is_norm() && info(op).map == Map::value; }

std::string row(Operation op) {
  const OperationInfo& i = info(op);
  std::string function = name_of(op), order;
  if (function[0] == '_') function.erase(0, 1);
  for (const Power& power : kPowers) {
    const bool norm = power.norm == op;
    if (!norm && power.powsum != op) continue;
    function = norm ? "vector_norm" : "powsum";
    order = text_of(power.ord);
    break;
  }
  std::string json = "{\"name\": " + in_quotes(name_of(op)) + ", \"function\": " + in_quotes(function);
  json += ", \"order\": " + (order.empty() ? "null" : in_quotes(order));
  json += ", \"typing\": " + in_quotes(name_of(i.typing)) + ", \"map\": " + in_quotes(name_of(i.map));
  json += ", \"combine\": " + in_quotes(name_of(i.combine)) + ", \"finish\": " + in_quotes(name_of(i.finish));
  json += ", \"node\": " + in_quotes(name_of(node_of(op))) + ", \"join\": " + in_quotes(join_of(op));
  return json + ", \"part\": " + (is_part(op) ? "true" : "false") + "}";
}

// All rows in their order. And for each order of a norm: the operators for the norm, for its sum of powers, and for the norm
// from sums of powers; null if there is none.
std::string operations() {
  std::string rows, powers;
  for (const Operation op : kOperations) rows += (rows.empty() ? "" : ", ") + row(op);
  for (const Power& power : kPowers) {
    std::string powsum = "null", root = "null";
    if (power.powsum) {
      powsum = in_quotes(name_of(*power.powsum));
      for (const Operation op : kOperations) {
        const bool same = info(op).finish == info(*power.norm).finish;
        if (same && (op == Operation::sum || (is_part(op) && info(op).is_norm()))) root = in_quotes(name_of(op));
      }
    }
    powers += (powers.empty() ? "" : ", ") + in_quotes(text_of(power.ord)) + ": {\"norm\": " + in_quotes(name_of(*power.norm)) +
              ", \"powsum\": " + powsum + ", \"root\": " + root + "}";
  }
  return "{\"operations\": [" + rows + "], \"powers\": {" + powers + "}}";
}

// torch's Python name of the dtype of a tensor of these accumulators.
std::string dtype_name(Accumulator a) { return name_of(a); }

// The dtype of the nodes of an operation on elements of dtype `input` with a result of dtype `result`: the accumulator's. It
// refuses operations of typing `same`, whose nodes have the input's dtype.
std::string node_dtype(const std::string& operation, at::ScalarType input, at::ScalarType result) {
  std::optional<Operation> found;
  for (const Operation op : kOperations)
    if (operation == name_of(op)) found = op;
  TORCH_CHECK(found && info(*found).typing != Typing::same, "_node_dtype: there is no operation ", operation,
              " whose nodes are accumulators");
  const OperationInfo row = info(*found);
  if (row.has_dtype() && result == at::kBool) return "bool";
  if (at::isComplexType(input) && !at::isComplexType(result)) input = at::toRealValueType(input);
  const Accumulator a = accumulator_of(*found, dtype_of(input, "elements of dtype"), dtype_of(result, "a result of dtype"));
  return dtype_name(row.is_norm() && a == Accumulator::i64 ? Accumulator::f64 : a);  // results of norms are floating
}

// The dtype of the products that a weighted sum adds.
std::string product_dtype(at::ScalarType input, at::ScalarType weight, at::ScalarType result) {
  const char* const what = "a factor of dtype";
  return dtype_name(weighted::product_of(dtype_of(input, what), dtype_of(weight, what), dtype_of(result, "a result of dtype")));
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  m.def("_operations() -> str", &gpureduce::operations);
  m.def("_node_dtype(str operation, ScalarType input, ScalarType result) -> str", &gpureduce::node_dtype);
  m.def("_product_dtype(ScalarType input, ScalarType weight, ScalarType result) -> str", &gpureduce::product_dtype);
}
