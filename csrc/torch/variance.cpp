// var_mean, var and std: one operator with two results, and the functions that call it.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "../cpu/variance.h"
#include "applied.h"
#include "gradient.h"
#include "results.h"

namespace gpureduce::variance {

namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Both = Pair(const Tensor&, OptionalDims, double, bool, bool, OptionalDtype);

const c10::TypedOperatorHandle<Both>& both() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("gpureduce::_var_mean", "").typed<Both>();
  return handle;
}

// The dtype of the results: `dtype`, or otherwise torch's choice. Raises torch's errors.
at::ScalarType result_type(const Tensor& self, OptionalDtype dtype = std::nullopt) {
  const at::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(type), "var and std of complex numbers are not supported: input has dtype ",
                              type);
  TORCH_CHECK(at::isFloatingType(type), "std and var only support floating point and complex dtypes");
  dtype_of(type, "an input of dtype", "var");
  return dtype ? *dtype : at::isFloat8Type(type) ? at::kFloat : type;
}

// Without `variance` the call is only planned.
Reduction make_reduction(const Tensor& self, const DimMask& reduce, at::ScalarType result, const Tensor& variance,
                         const Tensor& mean, double correction, bool root) {
  Reduction r{};
  r.addends = Addends::deviations;
  r.accumulator = Accumulator::moments;
  r.out = dtype_of(result, "a result of dtype");
  r.input = self.const_data_ptr();
  r.in = dtype_of(self.scalar_type(), "an input of dtype");
  r.negate = self.is_neg();
  InputDims dims(self.dim());
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = {self.size(d), self.stride(d), 0, false, 0};
  complete(r, dims, reduce, {}, false, self.device(), "var: the input has");
  r.output = variance.defined() ? variance.mutable_data_ptr() : nullptr;
  r.mean = mean.defined() ? mean.mutable_data_ptr() : nullptr;
  r.correction = correction;
  r.root = root;
  return r;
}

Pair reduce_tuned(const Tensor& self, OptionalDims dim, double correction, bool root, bool keepdim, OptionalDtype dtype,
                  const Tuning& tuning) {
  const at::ScalarType result = result_type(self, dtype);
  const DimMask mask = reduced_dims(dim, self.dim());
  const auto sizes = result_sizes(self.sizes(), mask, keepdim);
  Pair results{allocate(sizes, result, self), allocate(sizes, result, self)};
  const auto& [variance, mean] = results;
  const Reduction r = make_reduction(self, mask, result, variance, mean, correction, root);
  if (static_cast<double>(r.problem.outputs == 0 ? 0 : r.problem.length) <= correction)
    TORCH_WARN(root ? "std" : "var", "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction ",
               "factor (input numel divided by output numel).");
  if (r.problem.outputs == 0) return results;
  if (r.problem.length == 0) {
    variance.fill_(std::numeric_limits<double>::quiet_NaN());
    mean.fill_(std::numeric_limits<double>::quiet_NaN());
    return results;
  }
#ifdef GPUREDUCE_WITH_CUDA
  if (self.is_cuda()) {
    cuda::run(r, cuda::plan(r, self.device(), tuning), self.device(), tuning);
    return results;
  }
#endif
  cpu::run_variance(r);
  return results;
}

Pair reduce(const Tensor& self, OptionalDims dim, double correction, bool root, bool keepdim, OptionalDtype dtype) {
  return reduce_tuned(self, dim, correction, root, keepdim, dtype, {});
}

Pair reduce_forced(const Tensor& self, OptionalDims dim, double correction, bool root, bool keepdim, OptionalDtype dtype,
                   const std::string& tuning) {
  return reduce_tuned(self, dim, correction, root, keepdim, dtype, Tuning::parse(tuning));
}

// A call that is only planned.
Reduction planned(const Tensor& self, OptionalDims dim, OptionalDtype dtype) {
  return make_reduction(self, reduced_dims(dim, self.dim()), result_type(self, dtype), {}, {}, 1, false);
}

std::string explain(const Tensor& self, OptionalDims dim, bool, OptionalDtype dtype, const std::string& tuning) {
  return explained(planned(self, dim, dtype), self.device(), Tuning::parse(tuning));
}

#ifdef GPUREDUCE_WITH_CUDA
int64_t plans(const Tensor& self, OptionalDims dim, bool, OptionalDtype dtype) {
  return plans_of(planned(self, dim, dtype), self.device());
}

void remember(const Tensor& self, OptionalDims dim, bool, OptionalDtype dtype, int64_t candidate) {
  remember_plan(planned(self, dim, dtype), cuda::facts(self.device()), static_cast<int>(candidate));
}
#endif

Pair reduce_meta(const Tensor& self, OptionalDims dim, double, bool, bool keepdim, OptionalDtype dtype) {
  const at::ScalarType result = result_type(self, dtype);
  const DimMask mask = reduced_dims(dim, self.dim());
  const auto sizes = result_sizes(self.sym_sizes(), mask, keepdim);
  const at::TensorOptions options = at::TensorOptions().dtype(result).device(self.device());
  return {at::empty_symint(sizes, options), at::empty_symint(sizes, options)};
}

// --- gradients ------------------------------------------------------------------------------------------------------------

// The facts that a backward pass needs besides the input, the mean, and the standard deviation if that is the result.
struct Saved {
  Dims dims;
  double correction = 1;
  bool root = false, keepdim = false;

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.dims);
    f(self.correction);
    f(self.root);
    f(self.keepdim);
  }
};

c10::SymInt count_of(const Tensor& self, const Dims& dims) {
  c10::SymInt count = 1;
  for (int64_t d : dims) count *= self.sym_size(d);
  return count;
}

// The derivative of a variance or deviation by each element, times `grad`, plus `share`: (x - mean) * factor + share. The
// factor is 2 grad / (n - correction) for a variance; for a deviation it is grad / deviation / (n - correction), or 0 if the
// deviation is 0. All is in float64, like the results, since differences from a mean far from 0 would lose all digits
// otherwise. All tensors except the elements have the reduced dims.
Tensor derivative(const Tensor& self, const Saved& saved, const Tensor& deviation, const Tensor& mean, const Tensor& grad,
                  const Tensor& share, at::ScalarType dtype) {
  const Tensor part = saved.root ? apply(Formula::ratio, grad, {{}, deviation}, at::kDouble) : 2 * grad.to(at::kDouble);
  const Tensor factor = apply(Formula::quotient, part, {{}, {}, {}, count_of(self, saved.dims), saved.correction}, at::kDouble);
  return apply(Formula::deviation, self, {factor, mean, share}, dtype);
}

struct Rule : RuleOf<Saved> {
  static constexpr std::array<bool, 3> kKept = {false, true, true};  // the input, the deviation if needed, the mean

  static std::string name() { return "gpureduce_var_mean_backward"; }

  static variable_list gradients(variable_list grads, const Saved& saved, const std::array<Tensor, 3>& kept) {
    const Tensor& self = kept[0];
    const auto spread = [&](const Tensor& x) { return x.defined() ? with_reduced_dims(x, saved.dims, saved.keepdim) : x; };
    const at::ScalarType dtype = self.scalar_type();
    Tensor share;
    if (grads[1].defined()) {
      Given given;
      given.count = count_of(self, saved.dims).max(1);
      share = apply(Formula::quotient, spread(grads[1]), std::move(given), grads[0].defined() ? at::kDouble : dtype);
    }
    if (grads[0].defined()) return {derivative(self, saved, spread(kept[1]), spread(kept[2]), spread(grads[0]), share, dtype)};
    return {share.defined() ? share.expand_symint(self.sym_sizes()) : share};
  }
};

Pair reduce_differentiable(c10::DispatchKeySet keys, const Tensor& self, OptionalDims dim, double correction, bool root,
                           bool keepdim, OptionalDtype dtype) {
  const bool backward = torch::autograd::compute_requires_grad(self), forward = torch::autograd::isFwGradDefined(self);
  if (backward || forward) {  // gradients need more digits than smaller dtypes have
    if (const at::ScalarType result = result_type(self, dtype); result != at::kDouble) {
      const auto [variance, mean] = both().call(self, dim, correction, root, keepdim, at::kDouble);
      return {rounded(variance, result), rounded(mean, result)};
    }
  }
  Pair results;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    results = both().redispatch(keys & c10::after_autograd_keyset, self, dim, correction, root, keepdim, dtype);
  }
  if (!backward && !forward) return results;
  auto& [variance, mean] = results;
  Saved saved;
  saved.dims = dims_of(reduced_dims(dim, self.dim()));
  saved.correction = correction;
  saved.root = root;
  saved.keepdim = keepdim;
  const auto node = backward ? make_node<Rule>() : nullptr;
  if (backward) {
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    node->facts = saved;
    torch::autograd::set_history(variance, node);
    torch::autograd::set_history(mean, node);
  }
  if (forward) {
    const Tensor &tangent = self._fw_grad(/*level=*/0), &primal = self._fw_primal(/*level=*/0);
    const auto spread = [&](const Tensor& x) { return with_reduced_dims(x, saved.dims, keepdim); };
    const Tensor ones = at::ones_like(spread(variance)).detach();
    Tensor change = derivative(primal, saved, spread(variance), spread(mean), ones, {}, at::kDouble) * tangent.to(at::kDouble);
    Tensor of_mean = tangent.to(at::kDouble);
    if (!saved.dims.empty()) {
      change = functional<Operation::sum>().call(change, at::IntArrayRef(saved.dims), keepdim, std::nullopt);
      of_mean = functional<Operation::mean>().call(tangent, at::IntArrayRef(saved.dims), keepdim, at::kDouble);
    }
    variance._set_fw_grad(change, /*level=*/0, /*is_inplace_op=*/false);
    mean._set_fw_grad(of_mean, /*level=*/0, /*is_inplace_op=*/false);
  }
  if (backward) {  // saved with their tangents, for second derivatives
    node->keep(0, self);
    if (root) node->keep(1, variance);
    node->keep(2, mean);
  }
  return results;
}

// --- vmap -----------------------------------------------------------------------------------------------------------------

Pair reduce_batched(const Tensor& self, OptionalDims dim, double correction, bool root, bool keepdim, OptionalDtype dtype) {
  namespace functorch = at::functorch;
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const auto layer = functorch::maybeCurrentDynamicLayer();
  TORCH_CHECK(layer.has_value(), "var_mean: the input has escaped from inside a function being vmapped");
  auto [value, batch_dim] = functorch::unwrapTensorAtLevel(self, layer->layerId());
  if (!batch_dim) return both().call(self, dim, correction, root, keepdim, dtype);
  value = value.movedim(*batch_dim, 0);
  const int64_t rank = value.dim() - 1;
  const DimMask reduce = reduced_dims(dim, rank);
  c10::SmallVector<int64_t, kCommonRank> dims;
  for (int64_t d = 0; d < rank; ++d)
    if (reduce[d]) dims.push_back(d + 1);
  if (rank == 0) {  // a batch of scalars: an empty list of dims would mean all dims
    value = value.unsqueeze(1);
    dims.push_back(1);
    keepdim = false;
  }
  auto [variance, mean] = both().call(value, at::IntArrayRef(dims), correction, root, keepdim, dtype);
  const auto level = layer->layerId();
  return {functorch::makeBatched(std::move(variance), 0, level), functorch::makeBatched(std::move(mean), 0, level)};
}

// --- the functions --------------------------------------------------------------------------------------------------------

double correction_of(const std::optional<at::Scalar>& correction) {
  TORCH_CHECK(!correction || !correction->isComplex(), "correction: expected a real number");
  return correction ? correction->toDouble() : 1;
}

Pair var_mean(const Tensor& self, OptionalDims dim, const std::optional<at::Scalar>& correction, bool keepdim) {
  return both().call(self, dim, correction_of(correction), false, keepdim, std::nullopt);
}

template <bool root>
Tensor var(const Tensor& self, OptionalDims dim, const std::optional<at::Scalar>& correction, bool keepdim) {
  return std::get<0>(both().call(self, dim, correction_of(correction), root, keepdim, std::nullopt));
}

template <bool root>
Tensor& var_out(const Tensor& self, OptionalDims dim, const std::optional<at::Scalar>& correction, bool keepdim, Tensor& out) {
  result_type(self, out.scalar_type());  // raises errors about the input
  TORCH_CHECK(at::isFloatingType(out.scalar_type()) && !at::isFloat8Type(out.scalar_type()), root ? "std" : "var",
              "(): Expected out tensor to have a floating dtype of 16 bits or more, but got ", out.scalar_type(), " instead");
  check_out_place(out, self.device());
  TORCH_CHECK(!(at::GradMode::is_enabled() && (self.requires_grad() || out.requires_grad())), root ? "std" : "var",
              "(): functions with out=... arguments don't support automatic differentiation, but one of the arguments requires "
              "grad.");
  const Tensor found = std::get<0>(both().call(self, dim, correction_of(correction), root, keepdim, out.scalar_type()));
  at::native::resize_output_symint(out, found.sym_sizes());
  return out.copy_(found);
}

template <bool root>
void define(torch::Library& m, const std::string& name) {
  const std::string arguments = "(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False";
  m.def((name + arguments + ") -> Tensor").c_str(), {at::Tag::pt2_compliant_tag});
  m.def((name + ".out" + arguments + ", Tensor(a!) out) -> Tensor(a!)").c_str(), {at::Tag::pt2_compliant_tag});
  composite(m, name, TORCH_FN(var<root>));
  composite(m, name + ".out", TORCH_FN(var_out<root>));
}

}  // namespace

}  // namespace gpureduce::variance

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  m.def(
      "_var_mean(Tensor self, int[1]? dim, float correction, bool root, bool keepdim, *, ScalarType? dtype=None) -> "
      "(Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_var_mean_tuned(Tensor self, int[1]? dim, float correction, bool root, bool keepdim, *, ScalarType? dtype=None, "
      "str tuning=\"\") -> (Tensor, Tensor)");  // these four match those of sums
  const std::string arguments = "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None";
  m.def(("_var_mean_explain" + arguments + ", str tuning=\"\") -> str").c_str());
  m.def(("_var_mean_plans" + arguments + ") -> int").c_str());
  m.def(("_var_mean_remember" + arguments + ", int candidate) -> ()").c_str());
  m.def("var_mean(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
        {at::Tag::pt2_compliant_tag});
  composite(m, "var_mean", TORCH_FN(variance::var_mean));
  variance::define<false>(m, "var");
  variance::define<true>(m, "std");
}

namespace {

void register_backend(torch::Library& m) {
  m.impl("_var_mean", &gpureduce::variance::reduce);
  m.impl("_var_mean_tuned", &gpureduce::variance::reduce_forced);
  m.impl("_var_mean_explain", &gpureduce::variance::explain);
}

}  // namespace

TORCH_LIBRARY_IMPL(gpureduce, CPU, m) { register_backend(m); }
#ifdef GPUREDUCE_WITH_CUDA
TORCH_LIBRARY_IMPL(gpureduce, CUDA, m) {
  register_backend(m);
  m.impl("_var_mean_plans", &gpureduce::variance::plans);
  m.impl("_var_mean_remember", &gpureduce::variance::remember);
}
#endif
TORCH_LIBRARY_IMPL(gpureduce, Meta, m) { m.impl("_var_mean", &gpureduce::variance::reduce_meta); }
TORCH_LIBRARY_IMPL(gpureduce, Autograd, m) { m.impl("_var_mean", TORCH_FN(gpureduce::variance::reduce_differentiable)); }
TORCH_LIBRARY_IMPL(gpureduce, FuncTorchBatched, m) { m.impl("_var_mean", TORCH_FN(gpureduce::variance::reduce_batched)); }
// Lazily negated views reach the kernels as they are, without a copy.
TORCH_LIBRARY_IMPL(gpureduce, Negative, m) {
  for (const char* each : {"_var_mean", "_var_mean_tuned", "_var_mean_explain", "_var_mean_plans", "_var_mean_remember"})
    m.impl(each, torch::CppFunction::makeFallthrough());
}
