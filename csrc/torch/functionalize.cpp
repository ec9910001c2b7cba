// The out variant of an operation under functionalization (torch.compile, torch.export) becomes a call of the plain variant,
// whose result replaces `out`. torch does this by itself only for ops that do not return the tensor that they write.
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "backend.h"

namespace gpureduce {

namespace {

namespace functionalization = at::functionalization::impl;

template <Operation op>
at::Tensor& reduce_out(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype, at::Tensor& out) {
  at::Tensor input = self;
  if (functionalization::isFunctionalTensor(self)) {
    functionalization::sync(self);
    input = functionalization::from_functional_tensor(self);
  }
  const at::AutoDispatchSkipFunctionalize below;
  if (!functionalization::isFunctionalTensor(out)) {
    TORCH_CHECK(!functionalization::isFunctionalTensor(self), name_of(op),
                ": out is written, so it must be functionalized where the input is");
    return out_variant<op>().call(input, dim, keepdim, dtype, out);
  }
  const at::ScalarType result = out_type(op, input, dtype, out);
  // For sums, the dtype of `out` decides. Others get dtype= itself: for norms of complex numbers it is complex, unlike the
  // result's dtype.
  constexpr bool kSum = info(op).has_dtype();
  const at::Tensor value = functional<op>().call(input, dim, keepdim, kSum ? OptionalDtype(result) : dtype);
  functionalization::replace_(out, value.to(result));  // results of any and all may be bool or uint8
  functionalization::commit_update(out);
  functionalization::sync(out);
  return out;
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_IMPL(gpureduce, Functionalize, m) {
  gpureduce::for_each_operation(
      [&](auto op) { m.impl((std::string(name_of(op)) + ".out").c_str(), &gpureduce::reduce_out<op>); });
}
