// torch.autocast, with torch's own policies: some operations on small floats return float32, unless the call names a dtype. The
// op reads small floats itself, so the input is neither cast nor copied.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "dispatch.h"

namespace gpureduce {

namespace {

template <Operation op>
at::Tensor call(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  return functional<op>().call(self, dim, keepdim, dtype);
}

template <Operation op, at::DeviceType device>
void put(torch::Library& m) {
  using namespace at::autocast;
  m.impl(name_of(op),
         TORCH_FN((WrapFunction<CastPolicy::fp32_set_opt_dtype, device, Functional, Functional, &call<op>>::type::call)));
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_IMPL(gpureduce, AutocastCUDA, m) {
  using namespace gpureduce;
  for_each_operation([&](auto op) {
    if constexpr (info(op).autocasts) put<op, at::kCUDA>(m);
  });
}

TORCH_LIBRARY_IMPL(gpureduce, AutocastCPU, m) {
  using namespace gpureduce;
  for_each_operation([&](auto op) {
    if constexpr (info(op).autocasts_on_cpu()) put<op, at::kCPU>(m);
  });
}
