// torch.autocast, by torch's own policy: on CUDA, where no dtype is given, float32 results of the smaller floats. The op takes
// those as they are and is only told the dtype, so nothing is cast or copied. On the CPU torch.sum has no policy, and neither
// has ours.
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
