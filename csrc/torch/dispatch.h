// The dispatcher's handles of the operations.
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
c10::TypedOperatorHandle<Signature> find_overload(Operation op, const char* overload) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("gpureduce::") + name_of(op)).c_str(), overload)
      .typed<Signature>();
}

template <Operation op>
const c10::TypedOperatorHandle<Functional>& functional() {
  static const auto handle = find_overload<Functional>(op, "");
  return handle;
}

template <Operation op>
const c10::TypedOperatorHandle<OutVariant>& out_variant() {
  static const auto handle = find_overload<OutVariant>(op, "out");
  return handle;
}

// Registers a function that calls other operators; derivatives, batching and tracing are theirs. It also serves vmap, since
// torch would otherwise call it once per element of a batch.
template <class Function>
void composite(torch::Library& m, const std::string& name, Function function) {
  using Key = c10::DispatchKey;
  for (const auto key :
       {Key::CompositeImplicitAutograd, Key::CompositeImplicitAutogradNestedTensor, Key::FuncTorchBatchedDecomposition})
    m.impl(name.c_str(), torch::dispatch(key, function));
}

// Calls `f` with each operation as a compile-time constant.
template <class F>
void for_each_operation(F f) {
#define GPUREDUCE_OPERATION(name, ...) f(std::integral_constant<Operation, Operation::name>());
  GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
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
