// torch.autocast, by torch's own policy: on CUDA, where no dtype is given, float32 results of the smaller floats. The op takes
// those as they are and is only told the dtype, so nothing is cast or copied. On the CPU torch.sum has no policy, and neither
// has ours.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "operations.h"

namespace gpureduce {

namespace {

template <class Op>
at::Tensor call(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, Dtype dtype) {
  return functional<Op>().call(self, dim, keepdim, dtype);
}

template <class Op>
void add_policy(torch::Library& m) {
  using namespace at::autocast;
  if constexpr (Op::is_autocast)
    m.impl(Op::name,
           TORCH_FN((WrapFunction<CastPolicy::fp32_set_opt_dtype, at::kCUDA, Reduce, Reduce, &call<Op>>::type::call)));
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_IMPL(gpureduce, AutocastCUDA, m) {
#define GPUREDUCE_REGISTER(op, ...) gpureduce::add_policy<gpureduce::operation::op>(m);
  GPUREDUCE_OPERATIONS(GPUREDUCE_REGISTER)
#undef GPUREDUCE_REGISTER
}
