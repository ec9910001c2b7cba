// weighted_sum, the sum of the products of two inputs: schema, checks, backends, and everything that torch needs of an
// operator. And dot, which calls it.
#include <ATen/ExpandUtils.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../cpu/weighted.h"
#include "../numeric/weighted.h"
#include "applied.h"
#include "gradient.h"
#include "results.h"

namespace gpureduce::weighted {

namespace {

using at::Tensor;
using Functional = Tensor(const Tensor&, const Tensor&, OptionalDims, bool, OptionalDtype);
using OutVariant = Tensor&(const Tensor&, const Tensor&, OptionalDims, bool, OptionalDtype, Tensor&);

constexpr const char* kName = "weighted_sum";

const c10::TypedOperatorHandle<Functional>& functional() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("gpureduce::weighted_sum", "").typed<Functional>();
  return handle;
}

const c10::TypedOperatorHandle<OutVariant>& out_variant() {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("gpureduce::weighted_sum", "out").typed<OutVariant>();
  return handle;
}

// --- checks ---------------------------------------------------------------------------------------------------------------

void check_dtype(at::ScalarType type, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(type), kName, ": complex numbers are not supported: ", what, " ", type);
  dtype_of(type, what, kName);
}

// The dtype of the result: `dtype`, or otherwise as for a sum of elements of the promoted dtype.
at::ScalarType result_type(const Tensor& self, const Tensor& weight, OptionalDtype dtype) {
  check_dtype(self.scalar_type(), "a self of dtype");
  check_dtype(weight.scalar_type(), "a weight of dtype");
  const at::ScalarType promoted = dtype ? *dtype : at::promoteTypes(self.scalar_type(), weight.scalar_type());
  const at::ScalarType result = gpureduce::result_type(Operation::sum, promoted, dtype);
  check_dtype(result, "a result of dtype");
  return result;
}

void check_devices(const Tensor& self, const Tensor& weight) {
  TORCH_CHECK(self.device() == weight.device(), kName, ": Expected all tensors to be on the same device, but self is on ",
              self.device(), " and weight is on ", weight.device());
}

DimMask mask_of(const Tensor& self, const Tensor& weight, OptionalDims dim) {
  return reduced_dims(dim, std::max(self.dim(), weight.dim()));
}

// The sizes that both inputs are expanded to. Data-dependent traced sizes count as equal unless one is known to be 1, as in
// torch; this is checked when they are known.
c10::SymDimVector common_sizes(c10::SymIntArrayRef self, c10::SymIntArrayRef weight) {
  const int64_t rank = static_cast<int64_t>(std::max(self.size(), weight.size()));
  const auto size_of = [&](c10::SymIntArrayRef sizes, int64_t d) {
    const int64_t own = d - (rank - static_cast<int64_t>(sizes.size()));
    return own < 0 ? c10::SymInt(1) : sizes[own];
  };
  c10::SymDimVector common;
  for (int64_t d = 0; d < rank; ++d) {
    const c10::SymInt a = size_of(self, d), b = size_of(weight, d);
    const bool stretched = TORCH_GUARD_OR_FALSE(a.sym_eq(1));
    if (!stretched && !TORCH_GUARD_OR_FALSE(b.sym_eq(1)))
      TORCH_SYM_CHECK(a.sym_eq(b), "The size of tensor a (", a, ") must match the size of tensor b (", b,
                      ") at non-singleton dimension ", d);
    common.push_back(stretched ? b : a);
  }
  return common;
}

// --- the problem and its backends -----------------------------------------------------------------------------------------

// The stride of an input that is expanded to `rank` dims.
int64_t expanded_stride(const Tensor& input, int64_t d, int64_t rank) {
  const int64_t own = d - (rank - input.dim());
  return own < 0 || input.size(own) == 1 ? 0 : input.stride(own);
}

// Without `out` the call is only checked or planned, with the strides of a new contiguous result.
Reduction make_reduction(const Tensor& self, const Tensor& weight, at::IntArrayRef sizes, const DimMask& reduce,
                         at::ScalarType result, const Tensor& out, bool keepdim) {
  Reduction r{};
  r.addends = Addends::products;
  r.out = dtype_of(result, "a result of dtype");
  r.input = self.const_data_ptr();
  r.in = dtype_of(self.scalar_type(), "a self of dtype");
  r.negate = self.is_neg();
  r.second = weight.const_data_ptr();
  r.second_dtype = dtype_of(weight.scalar_type(), "a weight of dtype");
  r.second_negate = weight.is_neg();
  r.product = product_of(r.in, r.second_dtype, r.out);
  r.accumulator = accumulator_of(r.product, r.out);
  r.truth = r.out == DType::Bool;
  const int64_t rank = static_cast<int64_t>(sizes.size());
  InputDims dims(sizes.size());
  for (int64_t d = 0; d < rank; ++d)
    dims[d] = {sizes[d], expanded_stride(self, d, rank), 0, false, expanded_stride(weight, d, rank)};
  complete(r, dims, reduce, out, keepdim, self.device(), "weighted_sum: self and weight have");
  return r;
}

void compute(const Tensor& self, const Tensor& weight, at::IntArrayRef sizes, const DimMask& reduce, bool keepdim,
             const Tensor& out, const Tuning& tuning = {}) {
  const Reduction r = make_reduction(self, weight, sizes, reduce, out.scalar_type(), out, keepdim);
  if (r.problem.outputs == 0) return;
  if (r.problem.length == 0) {
    out.zero_();
    return;
  }
#ifdef GPUREDUCE_WITH_CUDA
  if (self.is_cuda()) {
    cuda::run(r, cuda::plan(r, self.device(), tuning), self.device(), tuning);
    return;
  }
#endif
  cpu::run_weighted(r);
}

Tensor reduce_tuned(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                    const Tuning& tuning) {
  check_devices(self, weight);
  const at::ScalarType result = result_type(self, weight, dtype);
  const DimMask mask = mask_of(self, weight, dim);
  const auto sizes = at::infer_size_dimvector(self.sizes(), weight.sizes());
  const auto own = result_sizes(at::IntArrayRef(sizes), mask, keepdim);
  const Tensor out = allocate(own, result, self);
  compute(self, weight, sizes, mask, keepdim, out, tuning);
  return out;
}

Tensor reduce(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  return reduce_tuned(self, weight, dim, keepdim, dtype, {});
}

Tensor reduce_forced(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                     const std::string& tuning) {
  return reduce_tuned(self, weight, dim, keepdim, dtype, Tuning::parse(tuning));
}

// A call that is only planned.
Reduction planned(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  check_devices(self, weight);
  const at::ScalarType result = result_type(self, weight, dtype);
  const auto sizes = at::infer_size_dimvector(self.sizes(), weight.sizes());
  return make_reduction(self, weight, sizes, mask_of(self, weight, dim), result, {}, keepdim);
}

std::string explain(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                    const std::string& tuning) {
  return explained(planned(self, weight, dim, keepdim, dtype), self.device(), Tuning::parse(tuning));
}

#ifdef GPUREDUCE_WITH_CUDA
int64_t plans(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  return plans_of(planned(self, weight, dim, keepdim, dtype), self.device());
}

void remember(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype,
              int64_t candidate) {
  const Reduction r = planned(self, weight, dim, keepdim, dtype);
  remember_plan(r, cuda::facts(self.device()), static_cast<int>(candidate));
}
#endif

// torch's checks of `out`, before anything is written.
void check_out(const Tensor& self, const Tensor& weight, OptionalDtype dtype, const Tensor& out) {
  const at::ScalarType result = result_type(self, weight, dtype ? dtype : OptionalDtype(out.scalar_type()));
  check_out_dtype(out, result);
  check_out_place(out, self.device());
}

Tensor& reduce_out(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype, Tensor& out) {
  check_devices(self, weight);
  check_out(self, weight, dtype, out);
  const DimMask mask = mask_of(self, weight, dim);
  const auto sizes = at::infer_size_dimvector(self.sizes(), weight.sizes());
  const auto own = result_sizes(at::IntArrayRef(sizes), mask, keepdim);
  check_writable(out, own);
  make_reduction(self, weight, sizes, mask, out.scalar_type(), {}, keepdim);  // refuses before `out` changes
  // If writing `out` could change an input, or `out` is a lazy view, computes in a tensor of its own first.
  if (out.is_alias_of(self) || out.is_alias_of(weight) || out.is_neg()) {
    const Tensor result = at::empty(own, out.options());
    compute(self, weight, sizes, mask, keepdim, result);
    at::native::resize_output(out, own);
    out.copy_(result);
    return out;
  }
  at::native::resize_output(out, own);
  compute(self, weight, sizes, mask, keepdim, out);
  return out;
}

Tensor reduce_meta(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  check_devices(self, weight);
  const at::ScalarType result = result_type(self, weight, dtype);
  const DimMask mask = mask_of(self, weight, dim);
  const auto sizes = common_sizes(self.sym_sizes(), weight.sym_sizes());
  return at::empty_symint(result_sizes(c10::SymIntArrayRef(sizes), mask, keepdim),
                          at::TensorOptions().dtype(result).device(self.device()));
}

Tensor& reduce_out_meta(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                        Tensor& out) {
  check_devices(self, weight);
  check_out(self, weight, dtype, out);
  const DimMask mask = mask_of(self, weight, dim);
  const auto sizes = common_sizes(self.sym_sizes(), weight.sym_sizes());
  at::native::resize_output_symint(out, result_sizes(c10::SymIntArrayRef(sizes), mask, keepdim));
  return out;
}

// --- gradients ------------------------------------------------------------------------------------------------------------

using Sizes = std::vector<c10::SymInt>;

// The facts that a backward pass needs besides the inputs.
struct Saved {
  Sizes self_sizes, weight_sizes;
  at::ScalarType self_dtype = at::kFloat, weight_dtype = at::kFloat;
  Dims dims;
  bool keepdim = false, needs_self = false, needs_weight = false;

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.self_sizes);
    f(self.weight_sizes);
    f(self.self_dtype);
    f(self.weight_dtype);
    f(self.dims);
    f(self.keepdim);
    f(self.needs_self);
    f(self.needs_weight);
  }
};

// The gradient of one input: the result's gradient times the other input, summed in the contract's order over the dims along
// which the input was broadcast. `grad` has the reduced dims.
Tensor gradient(const Tensor& grad, const Tensor& other, const Sizes& sizes, at::ScalarType dtype) {
  const auto common = common_sizes(sizes, other.sym_sizes());
  const int64_t rank = grad.dim(), missing = rank - static_cast<int64_t>(sizes.size());
  Dims over;
  for (int64_t d = 0; d < rank; ++d)
    if (d < missing || (TORCH_GUARD_OR_FALSE(sizes[d - missing].sym_eq(1)) && TORCH_GUARD_OR_TRUE(common[d].sym_ne(1))))
      over.push_back(d);
  Tensor result;
  if (over.empty()) {
    result = apply(Formula::product, other.expand_symint(common), {grad}, dtype);
  } else {
    result = functional().call(other, grad, at::IntArrayRef(over), true, dtype);
    for (int64_t d = 0; d < missing; ++d) result = result.squeeze(0);
  }
  return result.expand_symint(sizes);
}

struct Rule : RuleOf<Saved> {
  static constexpr std::array<bool, 2> kKept = {false, false};  // self and weight

  static std::string name() { return "gpureduce_weighted_sum_backward"; }

  static Saved asked(Saved saved, torch::autograd::Node& node) {
    saved.needs_self = saved.needs_self && node.task_should_compute_output(0);
    saved.needs_weight = saved.needs_weight && node.task_should_compute_output(1);
    return saved;
  }

  static variable_list gradients(variable_list grads, const Saved& saved, const std::array<Tensor, 2>& kept) {
    variable_list result(2);
    if (!grads[0].defined()) return result;
    const Tensor grad = with_reduced_dims(grads[0], saved.dims, saved.keepdim);
    if (saved.needs_self) result[0] = gradient(grad, kept[1], saved.self_sizes, saved.self_dtype);
    if (saved.needs_weight) result[1] = gradient(grad, kept[0], saved.weight_sizes, saved.weight_dtype);
    return result;
  }
};

// The tangent of the result, from tangents of the inputs.
Tensor tangent(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, at::ScalarType dtype) {
  const Tensor &of_self = self._fw_grad(/*level=*/0), &of_weight = weight._fw_grad(/*level=*/0);
  Tensor change;
  if (of_self.defined()) change = functional().call(of_self, weight._fw_primal(/*level=*/0), dim, keepdim, dtype);
  if (of_weight.defined()) {
    const Tensor more = functional().call(self._fw_primal(/*level=*/0), of_weight, dim, keepdim, dtype);
    change = change.defined() ? change + more : more;
  }
  return change;
}

Tensor reduce_differentiable(c10::DispatchKeySet keys, const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim,
                             OptionalDtype dtype) {
  const bool backward = torch::autograd::compute_requires_grad(self, weight);
  const bool forward = torch::autograd::isFwGradDefined(self) || torch::autograd::isFwGradDefined(weight);
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = functional().redispatch(keys & c10::after_autograd_keyset, self, weight, dim, keepdim, dtype);
  }
  if (!(backward || forward) || !torch::autograd::isDifferentiableType(result.scalar_type())) return result;
  const auto node = backward ? make_node<Rule>() : nullptr;
  if (backward) {
    node->set_next_edges(torch::autograd::collect_next_edges(self, weight));
    node->facts.dims = dims_of(mask_of(self, weight, dim));
    node->facts.self_sizes = self.sym_sizes().vec();
    node->facts.weight_sizes = weight.sym_sizes().vec();
    node->facts.self_dtype = self.scalar_type();
    node->facts.weight_dtype = weight.scalar_type();
    node->facts.keepdim = keepdim;
    node->facts.needs_self = self.requires_grad();
    node->facts.needs_weight = weight.requires_grad();
    torch::autograd::set_history(result, node);
    if (self.requires_grad()) node->keep(1, weight);
    if (weight.requires_grad()) node->keep(0, self);
  }
  if (forward)
    result._set_fw_grad(tangent(self, weight, dim, keepdim, result.scalar_type()), /*level=*/0, /*is_inplace_op=*/false);
  return result;
}

Tensor& reduce_out_differentiable(c10::DispatchKeySet keys, const Tensor& self, const Tensor& weight, OptionalDims dim,
                                  bool keepdim, OptionalDtype dtype, Tensor& out) {
  if (torch::autograd::compute_requires_grad(self, weight, out)) torch::autograd::throw_error_out_requires_grad(kName);
  TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(self) && !torch::autograd::isFwGradDefined(weight) &&
                                  !torch::autograd::isFwGradDefined(out),
                              "Trying to use forward AD with ", kName,
                              "_out that does not support it because it is an out= function");
  const at::AutoDispatchBelowAutograd below;
  return out_variant().redispatch(keys & c10::after_autograd_keyset, self, weight, dim, keepdim, dtype, out);
}

// Counts the write to `out`. A refused call writes nothing, so it is not counted.
Tensor& reduce_out_counted(c10::DispatchKeySet keys, const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim,
                           OptionalDtype dtype, Tensor& out) {
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    out_variant().redispatch(keys & c10::after_ADInplaceOrView_keyset, self, weight, dim, keepdim, dtype, out);
  }
  torch::autograd::increment_version(out);
  return out;
}

// --- vmap, autocast, functionalization ------------------------------------------------------------------------------------

namespace functorch = at::functorch;

// Moves the batch dim to the front, if there is one, and adds dims behind it until `rank` dims follow.
Tensor batch_first(const Tensor& value, std::optional<int64_t> batch_dim, int64_t rank) {
  if (!batch_dim) return value;
  Tensor result = value.movedim(*batch_dim, 0);
  while (result.dim() <= rank) result = result.unsqueeze(1);
  return result;
}

Tensor reduce_batched(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const auto layer = functorch::maybeCurrentDynamicLayer();
  TORCH_CHECK(layer.has_value(), kName, ": an input has escaped from inside a function being vmapped");
  const auto [a, a_batch] = functorch::unwrapTensorAtLevel(self, layer->layerId());
  const auto [b, b_batch] = functorch::unwrapTensorAtLevel(weight, layer->layerId());
  if (!a_batch && !b_batch) return functional().call(self, weight, dim, keepdim, dtype);
  const int64_t rank = std::max(a.dim() - a_batch.has_value(), b.dim() - b_batch.has_value());
  const DimMask reduce = reduced_dims(dim, rank);
  c10::SmallVector<int64_t, kCommonRank> dims;
  for (int64_t d = 0; d < rank; ++d)
    if (reduce[d]) dims.push_back(d + 1);
  if (rank == 0) {  // a batch of scalars: an empty list of dims would mean all dims
    dims.push_back(1);
    keepdim = false;
  }
  const int64_t needed = std::max<int64_t>(rank, 1);
  Tensor result = functional().call(batch_first(a, a_batch, needed), batch_first(b, b_batch, needed), at::IntArrayRef(dims),
                                    keepdim, dtype);
  return functorch::makeBatched(std::move(result), 0, layer->layerId());
}

// torch's policy for a sum: floats below float64 have float32 results, unless the call names a dtype.
Tensor reduce_autocast(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCUDA);
  const auto is_double = [](const Tensor& x) { return x.scalar_type() == at::kDouble; };
  const auto is_eligible = [&](const Tensor& x) { return x.is_cuda() && x.is_floating_point() && !is_double(x); };
  if (!dtype && (is_eligible(self) || is_eligible(weight)) && !is_double(self) && !is_double(weight)) dtype = at::kFloat;
  return functional().call(self, weight, dim, keepdim, dtype);
}

namespace functionalization = at::functionalization::impl;

Tensor plain(const Tensor& input) {
  if (!functionalization::isFunctionalTensor(input)) return input;
  functionalization::sync(input);
  return functionalization::from_functional_tensor(input);
}

// The out variant becomes a call of the plain one, whose result replaces `out`.
Tensor& reduce_out_functional(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                              Tensor& out) {
  const Tensor first = plain(self), second = plain(weight);
  const at::AutoDispatchSkipFunctionalize below;
  if (!functionalization::isFunctionalTensor(out)) {
    TORCH_CHECK(!functionalization::isFunctionalTensor(self) && !functionalization::isFunctionalTensor(weight), kName,
                ": out is written, so it must be functionalized where an input is");
    return out_variant().call(first, second, dim, keepdim, dtype, out);
  }
  check_out(first, second, dtype, out);
  const Tensor value = functional().call(first, second, dim, keepdim, out.scalar_type());
  functionalization::replace_(out, value);
  functionalization::commit_update(out);
  functionalization::sync(out);
  return out;
}

// --- dot ------------------------------------------------------------------------------------------------------------------

// Raises torch.dot's errors. Returns the dtype of the result; under torch.autocast, different dtypes are promoted.
OptionalDtype dot_dtype(const Tensor& self, const Tensor& other, OptionalDtype dtype) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ", other.dim(),
              "D tensors");
  const auto is_eligible = [](const Tensor& x) { return x.is_floating_point() && x.scalar_type() != at::kDouble; };
  const bool promotes =
      self.is_cuda() && at::autocast::is_autocast_enabled(at::kCUDA) && is_eligible(self) && is_eligible(other);
  TORCH_CHECK(self.scalar_type() == other.scalar_type() || promotes,
              "dot : expected both vectors to have same dtype, but found ", self.scalar_type(), " and ", other.scalar_type());
  const c10::SymInt count = self.sym_size(0), others = other.sym_size(0);
  TORCH_SYM_CHECK(count.sym_eq(others), "inconsistent tensor size, expected tensor [", count, "] and src [", others,
                  "] to have the same number of elements, but got ", count, " and ", others, " elements respectively");
  const at::ScalarType promoted = at::promoteTypes(self.scalar_type(), other.scalar_type());
  return dtype || !promotes ? dtype : OptionalDtype(gpureduce::result_type(Operation::sum, promoted, {}));
}

Tensor dot(const Tensor& self, const Tensor& other, OptionalDtype dtype) {
  return functional().call(self, other, std::nullopt, false, dot_dtype(self, other, dtype));
}

// torch.dot's `out` must have the dtype of the result.
Tensor& dot_out(const Tensor& self, const Tensor& other, OptionalDtype dtype, Tensor& out) {
  dtype = dot_dtype(self, other, dtype);
  check_out_dtype(out, result_type(self, other, dtype));
  return out_variant().call(self, other, std::nullopt, false, dtype, out);
}

void register_backend(torch::Library& m) {
  m.impl("weighted_sum", &reduce);
  m.impl("_weighted_sum_tuned", &reduce_forced);
  m.impl("_weighted_sum_explain", &explain);
  m.impl("weighted_sum.out", &reduce_out);
}

}  // namespace

}  // namespace gpureduce::weighted

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  const std::string arguments = "(Tensor self, Tensor weight, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None";
  m.def(("weighted_sum" + arguments + ") -> Tensor").c_str(), {at::Tag::pt2_compliant_tag});
  m.def(("weighted_sum.out" + arguments + ", Tensor(a!) out) -> Tensor(a!)").c_str(), {at::Tag::pt2_compliant_tag});
  m.def(("_weighted_sum_tuned" + arguments + ", str tuning=\"\") -> Tensor").c_str());  // these four match those of sums
  m.def(("_weighted_sum_explain" + arguments + ", str tuning=\"\") -> str").c_str());
  m.def(("_weighted_sum_plans" + arguments + ") -> int").c_str());
  m.def(("_weighted_sum_remember" + arguments + ", int candidate) -> ()").c_str());
  m.def("dot(Tensor self, Tensor other, *, ScalarType? dtype=None) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("dot.out(Tensor self, Tensor other, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        {at::Tag::pt2_compliant_tag});
  gpureduce::composite(m, "dot", TORCH_FN(gpureduce::weighted::dot));
  gpureduce::composite(m, "dot.out", TORCH_FN(gpureduce::weighted::dot_out));
}

TORCH_LIBRARY_IMPL(gpureduce, CPU, m) { gpureduce::weighted::register_backend(m); }
#ifdef GPUREDUCE_WITH_CUDA
TORCH_LIBRARY_IMPL(gpureduce, CUDA, m) {
  gpureduce::weighted::register_backend(m);
  m.impl("_weighted_sum_plans", &gpureduce::weighted::plans);
  m.impl("_weighted_sum_remember", &gpureduce::weighted::remember);
}
#endif
TORCH_LIBRARY_IMPL(gpureduce, Meta, m) {
  m.impl("weighted_sum", &gpureduce::weighted::reduce_meta);
  m.impl("weighted_sum.out", &gpureduce::weighted::reduce_out_meta);
}
TORCH_LIBRARY_IMPL(gpureduce, Autograd, m) {
  m.impl("weighted_sum", TORCH_FN(gpureduce::weighted::reduce_differentiable));
  m.impl("weighted_sum.out", TORCH_FN(gpureduce::weighted::reduce_out_differentiable));
}
TORCH_LIBRARY_IMPL(gpureduce, ADInplaceOrView, m) {
  m.impl("weighted_sum.out", TORCH_FN(gpureduce::weighted::reduce_out_counted));
}
TORCH_LIBRARY_IMPL(gpureduce, FuncTorchBatched, m) { m.impl("weighted_sum", TORCH_FN(gpureduce::weighted::reduce_batched)); }
TORCH_LIBRARY_IMPL(gpureduce, AutocastCUDA, m) { m.impl("weighted_sum", TORCH_FN(gpureduce::weighted::reduce_autocast)); }
TORCH_LIBRARY_IMPL(gpureduce, Functionalize, m) { m.impl("weighted_sum.out", &gpureduce::weighted::reduce_out_functional); }
// Lazily negated views reach the kernels as they are, without a copy.
TORCH_LIBRARY_IMPL(gpureduce, Negative, m) {
  for (const char* each : {"weighted_sum", "weighted_sum.out", "_weighted_sum_tuned", "_weighted_sum_explain",
                           "_weighted_sum_plans", "_weighted_sum_remember"})
    m.impl(each, torch::CppFunction::makeFallthrough());
}
