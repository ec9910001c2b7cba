// The norms, by order. Each calls the operation of its power (operation.h), which has gradients, vmap and the rest.
#include <torch/library.h>

#include "dispatch.h"
#include "powers.h"

namespace gpureduce {

namespace {

// The operation for the norm of this order, or for its sum of powers.
template <bool kNorm>
Operation operation_of(const at::Scalar& ord) {
  TORCH_CHECK(!ord.isComplex(), "linalg.vector_norm: Expected a non-complex scalar as the order of norm.");
  const double given = ord.toDouble();
  for (const Power& power : kPowers)
    if (const auto op = kNorm ? power.norm : power.powsum; op && power.ord == given) return *op;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, kNorm ? "linalg_vector_norm: ord must be 0, 1, 2, 3, inf or -inf" : "linalg_powsum: ord must be 0, 1, 2 or 3",
      ", but is ", given);
}

template <bool kNorm>
at::Tensor reduce(const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  return with_operation(operation_of<kNorm>(ord), [&](auto op) { return functional<op>().call(self, dim, keepdim, dtype); });
}

template <bool kNorm>
at::Tensor& reduce_out(const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                       at::Tensor& out) {
  with_operation(operation_of<kNorm>(ord),
                 [&](auto op) -> at::Tensor& { return out_variant<op>().call(self, dim, keepdim, dtype, out); });
  return out;
}

template <bool kNorm>
void define(torch::Library& m, const std::string& name) {
  define_composite(m, name, "(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None",
                   TORCH_FN(reduce<kNorm>), TORCH_FN(reduce_out<kNorm>));
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  gpureduce::define<true>(m, "linalg_vector_norm");
  gpureduce::define<false>(m, "linalg_powsum");
}
