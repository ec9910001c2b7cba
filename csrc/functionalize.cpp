// The out variants under functionalization (torch.compile, torch.export): the functional op, and its result takes the place of
// `out`. torch does this by itself only for ops that do not return what they write, and torch.sum.out returns it.
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "operations.h"

namespace gpureduce {

namespace {

namespace functionalization = at::functionalization::impl;

template <class Op>
at::Tensor& functionalized_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, Dtype dtype,
                               at::Tensor& out) {
  at::Tensor input = self;
  if (functionalization::isFunctionalTensor(self)) {
    functionalization::sync(self);
    input = functionalization::from_functional_tensor(self);
  }
  const at::AutoDispatchSkipFunctionalize below;
  if (!functionalization::isFunctionalTensor(out)) {
    TORCH_CHECK(!functionalization::isFunctionalTensor(self), Op::name,
                ": out is written, so it must be functionalized where the input is");
    return out_variant<Op>().call(input, dim, keepdim, dtype, out);
  }
  const at::ScalarType result = dtype.value_or(out.scalar_type());
  TORCH_CHECK(out.scalar_type() == result, "Expected out tensor to have dtype ", result, ", but got ", out.scalar_type(),
              " instead");
  const at::Tensor value = functional<Op>().call(input, dim, keepdim, result);
  functionalization::replace_(out, value);
  functionalization::commit_update(out);
  functionalization::sync(out);
  return out;
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_IMPL(gpureduce, Functionalize, m) {
#define GPUREDUCE_REGISTER(op, ...) m.impl(#op ".out", TORCH_FN(gpureduce::functionalized_out<gpureduce::operation::op>));
  GPUREDUCE_OPERATIONS(GPUREDUCE_REGISTER)
#undef GPUREDUCE_REGISTER
}
