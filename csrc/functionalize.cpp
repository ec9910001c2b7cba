// sum.out under functionalization (torch.compile, torch.export): the functional sum, and its result takes the place of `out`.
// torch does this by itself only for ops that do not return what they write, and torch.sum.out returns it.
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace gpureduce {

namespace {

namespace functional = at::functionalization::impl;
using Dtype = std::optional<at::ScalarType>;

at::Tensor& sum_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, Dtype dtype, at::Tensor& out) {
  static const auto sum = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("gpureduce::sum", "")
                              .typed<at::Tensor(const at::Tensor&, at::OptionalIntArrayRef, bool, Dtype)>();
  static const auto out_variant =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("gpureduce::sum", "out")
          .typed<at::Tensor&(const at::Tensor&, at::OptionalIntArrayRef, bool, Dtype, at::Tensor&)>();
  at::Tensor input = self;
  if (functional::isFunctionalTensor(self)) {
    functional::sync(self);
    input = functional::from_functional_tensor(self);
  }
  const at::AutoDispatchSkipFunctionalize below;
  if (!functional::isFunctionalTensor(out)) {
    TORCH_CHECK(!functional::isFunctionalTensor(self), "sum: out is written, so it must be functionalized where the input is");
    return out_variant.call(input, dim, keepdim, dtype, out);
  }
  const at::ScalarType result = dtype.value_or(out.scalar_type());
  TORCH_CHECK(out.scalar_type() == result, "Expected out tensor to have dtype ", result, ", but got ", out.scalar_type(),
              " instead");
  const at::Tensor value = sum.call(input, dim, keepdim, result);
  functional::replace_(out, value);
  functional::commit_update(out);
  functional::sync(out);
  return out;
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_IMPL(gpureduce, Functionalize, m) { m.impl("sum.out", &gpureduce::sum_out); }
