// torch.autocast, with torch's own policy: on CUDA, sums of smaller floats have float32 results, unless the call names a dtype.
// The op reads the smaller floats itself, so the input is neither cast nor copied. On the CPU torch.sum has no policy, and
// neither have our ops.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "dispatch.h"

namespace gpureduce {

namespace {

template <Operation op>
at::Tensor call(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  return functional<op>().call(self, dim, keepdim, dtype);
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_IMPL(gpureduce, AutocastCUDA, m) {
  using namespace gpureduce;
  using namespace at::autocast;
  for_each_operation([&](auto op) {
    if constexpr (info(op).autocasts)
      m.impl(
          name_of(op),
          TORCH_FN((WrapFunction<CastPolicy::fp32_set_opt_dtype, at::kCUDA, Functional, Functional, &call<op>>::type::call)));
  });
}
