// The norms, by order. Each calls the operation of its power (operation.h), which has gradients, vmap and the rest.
#include <torch/library.h>

#include "dispatch.h"
#include "powers.h"

namespace gpureduce {

namespace {

// The operation for the norm of this order, or for its sum of powers. `exact`: one that has_exact().
template <bool kNorm, bool exact>
Operation operation_of(const at::Scalar& ord) {
  TORCH_CHECK(!ord.isComplex(), "linalg.vector_norm: Expected a non-complex scalar as the order of norm.");
  const double given = ord.toDouble();
  for (const Power& power : kPowers)
    if (const auto op = kNorm ? power.norm : power.powsum; op && power.ord == given && (!exact || info(*op).has_exact()))
      return *op;
  const char* const function = kNorm ? "linalg_vector_norm" : "linalg_powsum";
  TORCH_CHECK_NOT_IMPLEMENTED(!exact, function, ": ord must be 2 with exact=True, but is ", given);
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, kNorm ? "linalg_vector_norm: ord must be 0, 1, 2, 3, inf or -inf" : "linalg_powsum: ord must be 0, 1, 2 or 3",
      ", but is ", given);
}

template <bool kNorm, bool exact>
at::Tensor reduce(const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  return functional({operation_of<kNorm, exact>(ord), exact}).call(self, dim, keepdim, dtype);
}

template <bool kNorm, bool exact>
at::Tensor& reduce_out(const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                       at::Tensor& out) {
  return out_variant({operation_of<kNorm, exact>(ord), exact}).call(self, dim, keepdim, dtype, out);
}

template <bool kNorm, bool exact>
void define(torch::Library& m, const std::string& name) {
  define_composite(m, exact ? exact_name(name) : name,
                   "(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None",
                   &reduce<kNorm, exact>, &reduce_out<kNorm, exact>);
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define<true, false>(m, "linalg_vector_norm");
  define<true, true>(m, "linalg_vector_norm");
  define<false, false>(m, "linalg_powsum");
  define<false, true>(m, "linalg_powsum");
}
