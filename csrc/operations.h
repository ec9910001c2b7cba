// The operations, one row each, as autograd, vmap and autocast see them: names, signatures, handles in the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace gpureduce {

// name; whether its result is divided by the number of elements in it; whether torch.autocast makes its result float32 on CUDA
// (torch's list of those is AT_FORALL_FP32_SET_OPT_DTYPE).
#define GPUREDUCE_OPERATIONS(X) X(sum, false, true)

using Dtype = std::optional<at::ScalarType>;
using Reduce = at::Tensor(const at::Tensor&, at::OptionalIntArrayRef, bool, Dtype);
using ReduceOut = at::Tensor&(const at::Tensor&, at::OptionalIntArrayRef, bool, Dtype, at::Tensor&);

namespace operation {

#define GPUREDUCE_OPERATION(op, divides, autocasts)                       \
  struct op {                                                             \
    static constexpr const char *name = #op, *schema = "gpureduce::" #op; \
    static constexpr bool is_mean = divides, is_autocast = autocasts;     \
  };
GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION

}  // namespace operation

template <class Op>
const c10::TypedOperatorHandle<Reduce>& functional() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(Op::schema, "").template typed<Reduce>();
  return handle;
}

template <class Op>
const c10::TypedOperatorHandle<ReduceOut>& out_variant() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(Op::schema, "out").template typed<ReduceOut>();
  return handle;
}

}  // namespace gpureduce
