// The dispatcher's handles of operators, and how operators are registered.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

#include "../operation.h"

namespace gpureduce {

using OptionalDims = at::OptionalIntArrayRef;
using OptionalDtype = std::optional<at::ScalarType>;
using Functional = at::Tensor(const at::Tensor&, OptionalDims, bool, OptionalDtype);
using OutVariant = at::Tensor&(const at::Tensor&, OptionalDims, bool, OptionalDtype, at::Tensor&);

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("gpureduce::") + name).c_str(), overload)
      .typed<Signature>();
}

// The name of an operation's operator; or of the one that adds exactly (exact.cpp).
template <Operation op, bool exact = false>
const char* operator_name() {
  static const std::string name = std::string(exact ? "exact_" : "") + name_of(op);
  return name.c_str();
}

template <Operation op, bool exact = false>
const c10::TypedOperatorHandle<Functional>& functional() {
  static const auto handle = find<Functional>(operator_name<op, exact>());
  return handle;
}

template <Operation op, bool exact = false>
const c10::TypedOperatorHandle<OutVariant>& out_variant() {
  static const auto handle = find<OutVariant>(operator_name<op, exact>(), "out");
  return handle;
}

// --- registration -----------------------------------------------------------------------------------------------------------

using Key = c10::DispatchKey;

template <class Function>
void put(torch::Library& m, Key key, const std::string& name, Function function) {
  m.impl(name.c_str(), torch::dispatch(key, std::move(function)));
}

template <class Function>
void put_on_backends(torch::Library& m, const std::string& name, Function function) {
  put(m, Key::CPU, name, function);
#ifdef GPUREDUCE_WITH_CUDA
  put(m, Key::CUDA, name, function);
#endif
}

// Defines an operator and its out variant, whose results are one tensor. `arguments` has an opening parenthesis only.
inline void define_with_out(torch::Library& m, const std::string& name, const std::string& arguments) {
  const char* const between = arguments.find('*') == std::string::npos ? ", *, " : ", ";
  m.def((name + arguments + ") -> Tensor").c_str(), {at::Tag::pt2_compliant_tag});
  m.def((name + ".out" + arguments + between + "Tensor(a!) out) -> Tensor(a!)").c_str(), {at::Tag::pt2_compliant_tag});
}

// Defines an operator that has a kernel of its own for each key. nullptr: torch's fallback serves it.
template <auto backends, auto meta, auto autograd = nullptr, auto batched = nullptr>
void define_operator(torch::Library& m, const std::string& schema) {
  const std::string name = schema.substr(0, schema.find('('));
  m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  put_on_backends(m, name, TORCH_FN(backends));
  put(m, Key::Meta, name, TORCH_FN(meta));
  if constexpr (autograd != nullptr) put(m, Key::Autograd, name, TORCH_FN(autograd));
  if constexpr (batched != nullptr) put(m, Key::FuncTorchBatched, name, TORCH_FN(batched));
}

// Registers a function that calls other operators; derivatives, batching and tracing are theirs. It also serves vmap, since
// torch would otherwise call it once per element of a batch.
template <class Function>
void composite(torch::Library& m, const std::string& name, Function function) {
  for (const Key key :
       {Key::CompositeImplicitAutograd, Key::CompositeImplicitAutogradNestedTensor, Key::FuncTorchBatchedDecomposition})
    put(m, key, name, function);
}

// --- operations -------------------------------------------------------------------------------------------------------------

// Calls `f` with each operation as a compile-time constant.
template <class F>
void for_each_operation(F f) {
#define GPUREDUCE_OPERATION(name, ...) f(std::integral_constant<Operation, Operation::name>());
  GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
}

// Calls `f` with each operation that exact sums have, too.
template <class F>
void for_each_exact_operation(F f) {
  for_each_operation([&](auto op) {
    if constexpr (info(op).has_exact()) f(op);
  });
}

// Calls `f` with the operation as a compile-time constant.
template <class F>
auto with_operation(Operation op, F f) {
  switch (op) {
#define GPUREDUCE_OPERATION(name, ...) \
  case Operation::name: return f(std::integral_constant<Operation, Operation::name>());
    GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace gpureduce
