// var_mean, var and std: one operator with two results, and functions that call it.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "cuda/variance/variance.h"
#endif

#include "applied.h"
#include "cpu/variance.h"
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

// The dtype of the results: `dtype`, or else torch's choice. Raises torch's error.
at::ScalarType result_type(const Tensor& self, OptionalDtype dtype = std::nullopt) {
  const at::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(type), "var and std of complex numbers are not supported: input has dtype ",
                              type);
  TORCH_CHECK(at::isFloatingType(type), "std and var only support floating point and complex dtypes");
  dtype_of(type, "an input of dtype", "var");
  return dtype ? *dtype : at::isFloat8Type(type) ? at::kFloat : type;
}

Reduction make_reduction(const Tensor& self, const DimMask& reduce, const Tensor& variance, const Tensor& mean,
                         double correction, bool root) {
  Reduction r{};
  r.out = dtype_of(variance.scalar_type(), "a result of dtype");
  r.input = {self.const_data_ptr(), dtype_of(self.scalar_type(), "an input of dtype"), self.is_neg()};
  c10::SmallVector<weighted::InputDim, kCommonRank> dims(self.dim());
  int64_t step = 1;  // of the results, which are contiguous
  for (int64_t d = self.dim() - 1; d >= 0; --d) {
    dims[d] = {self.size(d), self.stride(d), reduce[d] ? 0 : self.stride(d), reduce[d] ? 0 : step, reduce[d]};
    if (!reduce[d]) step *= self.size(d);
  }
  try {
    r.problem = weighted::make_problem(dims.data(), dims.size());
  } catch (const std::invalid_argument& e) {
    TORCH_CHECK(false, e.what());
  }
  r.variance = variance.mutable_data_ptr();
  r.mean = mean.mutable_data_ptr();
  r.finishing = {r.problem.length, correction, root};
  return r;
}

#ifdef GPUREDUCE_WITH_CUDA
void run_on_gpu(const Reduction& r, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const Device& facts = cuda::facts(device);
  const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  const cuda::Variances variances{r, facts, stream};
  Tensor workspace;  // goes back to the stream's pool when the launches are queued
  if (const int64_t bytes = cuda::workspace_of(variances))
    workspace = Tensor(at::detail::empty_cuda({bytes}, at::kByte, device, std::nullopt));
  C10_CUDA_CHECK(cuda::run_variances(variances, workspace.defined() ? workspace.mutable_data_ptr() : nullptr));
}
#endif

Pair reduce(const Tensor& self, OptionalDims dim, double correction, bool root, bool keepdim, OptionalDtype dtype) {
  const at::ScalarType result = result_type(self, dtype);
  const DimMask mask = reduced_dims(dim, self.dim());
  const auto sizes = result_sizes(self.sizes(), mask, keepdim);
  Pair results{allocate(sizes, result, self), allocate(sizes, result, self)};
  const auto& [variance, mean] = results;
  const Reduction r = make_reduction(self, mask, variance, mean, correction, root);
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
    run_on_gpu(r, self.device());
    return results;
  }
#endif
  cpu::run(r);
  return results;
}

Pair reduce_meta(const Tensor& self, OptionalDims dim, double, bool, bool keepdim, OptionalDtype dtype) {
  const at::ScalarType result = result_type(self, dtype);
  const DimMask mask = reduced_dims(dim, self.dim());
  const auto sizes = result_sizes(self.sym_sizes(), mask, keepdim);
  const at::TensorOptions options = at::TensorOptions().dtype(result).device(self.device());
  return {at::empty_symint(sizes, options), at::empty_symint(sizes, options)};
}

// --- gradients ------------------------------------------------------------------------------------------------------------

// What a backward pass needs to know besides the input, the mean, and the standard deviation if that is the result.
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

// The derivative of a variance or deviation by each element, times `grad`, plus `share`: (x - mean) * factor + share, where the
// factor is 2 grad / (n - correction), or grad / deviation / (n - correction), and 0 where the deviation is. In float64, as are
// the results, since differences from a mean far from 0 lose all digits otherwise. All but the elements have the reduced dims.
Tensor derivative(const Tensor& self, const Saved& saved, const Tensor& deviation, const Tensor& mean, const Tensor& grad,
                  const Tensor& share, at::ScalarType dtype) {
  const Tensor part = saved.root ? apply(Formula::ratio, grad, {{}, deviation}, at::kDouble) : 2 * grad.to(at::kDouble);
  const Tensor factor = apply(Formula::quotient, part, {{}, {}, {}, count_of(self, saved.dims), saved.correction}, at::kDouble);
  return apply(Formula::deviation, self, {factor, mean, share}, dtype);
}

struct Rule : RuleOf<Saved> {
  static constexpr std::array<bool, 3> kKept = {false, true, true};  // the input, the deviation if that is wanted, the mean

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
  if (backward || forward) {  // gradients need the digits that results of smaller dtypes lack
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
  if (backward) {  // with their tangents, for derivatives of derivatives
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
  m.def("var_mean(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
        {at::Tag::pt2_compliant_tag});
  composite(m, "var_mean", TORCH_FN(variance::var_mean));
  variance::define<false>(m, "var");
  variance::define<true>(m, "std");
}

TORCH_LIBRARY_IMPL(gpureduce, CPU, m) { m.impl("_var_mean", &gpureduce::variance::reduce); }
#ifdef GPUREDUCE_WITH_CUDA
TORCH_LIBRARY_IMPL(gpureduce, CUDA, m) { m.impl("_var_mean", &gpureduce::variance::reduce); }
#endif
TORCH_LIBRARY_IMPL(gpureduce, Meta, m) { m.impl("_var_mean", &gpureduce::variance::reduce_meta); }
TORCH_LIBRARY_IMPL(gpureduce, Autograd, m) { m.impl("_var_mean", TORCH_FN(gpureduce::variance::reduce_differentiable)); }
TORCH_LIBRARY_IMPL(gpureduce, FuncTorchBatched, m) { m.impl("_var_mean", TORCH_FN(gpureduce::variance::reduce_batched)); }
// Lazily negated views reach the kernels as they are, without a copy.
TORCH_LIBRARY_IMPL(gpureduce, Negative, m) { m.impl("_var_mean", torch::CppFunction::makeFallthrough()); }
