// softmax, log_softmax, rms_norm and layer_norm with their gradients: functions that keep their input's shape (numeric/rows.h).
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "../cpu/rows.h"
#include "applied.h"
#include "gradient.h"
#include "results.h"
#include "rows.h"

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "../cuda/rows.h"
#endif

#include <algorithm>
#include <memory>
#include <tuple>

namespace gpureduce::rows {

// --- a call and its backends ------------------------------------------------------------------------------------------------

DType real_dtype(const Tensor& x, const char* function) {
  TORCH_CHECK_NOT_IMPLEMENTED(!x.is_complex(), function, "(): complex numbers are not supported");
  return dtype_of(x.scalar_type(), "an input of dtype", function);
}

static bool is_wide(const Operands& operands) {
  return std::any_of(operands.begin(), operands.end(),
                     [](const Tensor& x) { return x.defined() && x.scalar_type() == at::kDouble; });
}

// The dtype of what a call computes with, and keeps per row.
at::ScalarType computed_in(const Operands& operands) { return is_wide(operands) ? at::kDouble : at::kFloat; }

// A call whose rows lie along all dims but `dims`. in_memory_order: a row's elements are added in the order of its memory, as a
// sum's; otherwise in logical order.
RowsCall make_call(RowFunction function, const Operands& operands, const DimMask& dims, const char* name,
                   bool in_memory_order) {
  const Tensor& like = operands[kRowX];
  const int64_t rank = like.dim();
  RowsCall call{};
  call.function = function;
  call.wide = is_wide(operands);
  std::vector<int64_t> across, along;
  for (int64_t d = 0; d < rank; ++d) (dims[d] ? across : along).push_back(d);
  if (in_memory_order) {
    const auto before = [&](int64_t a, int64_t b) {
      const int64_t p = like.stride(a), q = like.stride(b);
      return p == 0 ? q != 0 : q != 0 && p > q;
    };
    std::stable_sort(across.begin(), across.end(), before);
  }
  const auto stride = [&](int o, int64_t d) -> int64_t {
    const Tensor& x = operands[o].defined() ? operands[o] : like;
    if (o != kRowWeight && o != kRowBias) return x.stride(d) * x.element_size();
    if (!operands[o].defined()) return like.stride(d) * like.element_size();
    if (!dims[d]) return 0;
    const int64_t own = x.dim() - (rank - d);  // weights have the last dims
    return x.size(own) == 1 && like.size(d) != 1 ? 0 : x.stride(own) * x.element_size();
  };
  const auto fill = [&](RowDims& to, const std::vector<int64_t>& from) {
    for (int64_t d : from) {
      RowDim dim{like.size(d), {}};
      for (int o = 0; o < kRowOperands; ++o) dim.strides[o] = stride(o, d);
      TORCH_CHECK(to.add(dim), name, "(): more than ", kMaxRank, " dims stay apart");
    }
  };
  fill(call.along, along);
  fill(call.across, across);
  call.rows = call.along.count();
  call.length = call.across.count();
  for (int o = 0; o < kRowOperands; ++o) {
    if (!operands[o].defined()) continue;
    char* const data = static_cast<char*>(const_cast<void*>(operands[o].const_data_ptr()));
    call.operands[o] = {data, real_dtype(operands[o], name)};
  }
  return call;
}

void run(const RowsCall& call, const Tensor& like) {
  if (call.rows == 0 || call.length == 0) return;
#ifdef GPUREDUCE_WITH_CUDA
  if (like.is_cuda()) {
    const c10::cuda::CUDAGuard guard(like.device());
    C10_CUDA_CHECK(cuda::run_rows(call, cuda::facts(like.device()), c10::cuda::getCurrentCUDAStream(like.device().index())));
    return;
  }
#endif
  cpu::run(call);
}

void run(const RowWeightsCall& call, const Tensor& like) {
  if (call.call.length == 0 || call.call.rows == 0) return;
#ifdef GPUREDUCE_WITH_CUDA
  if (like.is_cuda()) {
    const c10::cuda::CUDAGuard guard(like.device());
    const Tensor workspace = at::empty({cuda::workspace_of(call)}, at::TensorOptions().dtype(at::kByte).device(like.device()));
    const auto stream = c10::cuda::getCurrentCUDAStream(like.device().index());
    C10_CUDA_CHECK(cuda::run_rows(call, workspace.data_ptr(), cuda::facts(like.device()), stream));
    return;
  }
#endif
  cpu::run(call);
}

// A result in memory as `like` lies there.
Tensor result_like(const Tensor& like, at::ScalarType dtype) {
  return at::empty_like(like, like.options().dtype(dtype), at::MemoryFormat::Preserve);
}

DimMask one_dim(const Tensor& self, int64_t dim) {
  DimMask mask(self.dim(), false);
  const int64_t d = c10::maybe_wrap_dim(dim, self.dim());
  if (self.dim() > 0) mask[d] = true;
  return mask;
}

namespace {

// --- softmax and log_softmax ------------------------------------------------------------------------------------------------

at::ScalarType softmax_type(const char* name, const Tensor& self, OptionalDtype dtype) {
  real_dtype(self, name);
  const at::ScalarType own = at::isFloat8Type(self.scalar_type()) ? at::kFloat : self.scalar_type();
  const at::ScalarType type = dtype.value_or(own);
  TORCH_CHECK_NOT_IMPLEMENTED(dtype || at::isFloatingType(type), name, "(): the input has the dtype ", type,
                              ", so dtype= must name a floating one");
  TORCH_CHECK(at::isFloatingType(type) && !at::isFloat8Type(type), name,
              "(): dtype: expected float16, bfloat16, float32 or float64, but got ", type);
  return type;
}

const auto& exponent_sum() {
  static const auto handle = find<Tensor(const Tensor&, const Tensor&, OptionalDims, bool)>("_exponent_sum");
  return handle;
}
using FinishRows = std::tuple<Tensor, Tensor>(const Tensor&, const OptionalTensor&, std::string_view, int64_t, double,
                                              at::ScalarType);
const auto& finish_rows() {
  static const auto handle = find<FinishRows>("_finish_rows");
  return handle;
}
const auto& weighted_sum() {
  static const auto handle = find<Tensor(const Tensor&, const Tensor&, OptionalDims, bool, OptionalDtype)>("weighted_sum");
  return handle;
}

// Below so many elements a call is one launch of the kernel that takes anything, which costs less than several launches.
constexpr int64_t kFewElements = 1 << 15;

// Runs a call, unless it had better be computed by parts, and returns false then.
bool run_unless_by_parts(const RowsCall& call, const Tensor& like) {
#ifdef GPUREDUCE_WITH_CUDA
  if (like.is_cuda() && call.rows * call.length >= kFewElements) {
    const c10::cuda::CUDAGuard guard(like.device());
    const auto stream = c10::cuda::getCurrentCUDAStream(like.device().index());
    const cudaError_t error = cuda::run_compiled_rows(call, cuda::facts(like.device()), stream);
    if (error == cuda::kNoKernel) return false;
    C10_CUDA_CHECK(error);
    return true;
  }
#endif
  run(call, like);
  return true;
}

// Softmaxes whose rows no compiled kernel takes, as of other dims than the last: the numbers of rows by reductions, then a
// formula. Everything is read twice more, but at the speed of memory.
template <bool logarithm>
Tensor softmax_by_parts(const Tensor& self, int64_t dim, at::ScalarType type) {
  const at::ScalarType computed = computed_in({self, {}, {}, {}, at::empty({0}, self.options().dtype(type))});
  const bool as_it_is = at::isFloatingType(self.scalar_type()) && (computed == at::kFloat || self.scalar_type() == at::kDouble);
  const Tensor x = as_it_is ? self : self.to(computed);
  const Tensor largest = functional<Operation::_amax>().call(x, dim, true, std::nullopt).to(computed);
  const Tensor sum = exponent_sum().call(x, largest, dim, true);
  const auto [m, number] = finish_rows().call(sum, largest, kSoftmax<logarithm>, self.size(dim), 0, computed);
  return apply(logarithm ? Formula::log_softmax : Formula::softmax, x, {m, number}, type);
}

template <bool logarithm>
Tensor softmax_backward_by_parts(const Tensor& grad, const Tensor& y, int64_t dim, at::ScalarType dtype) {
  const at::ScalarType computed = computed_in({y, grad, {}, {}, {}});
  if constexpr (logarithm) {
    const Tensor sum = functional<Operation::sum>().call(grad, dim, true, computed);
    return apply(Formula::log_softmax_backward, y, {grad, sum}, dtype);
  } else {
    const Tensor sum = weighted_sum().call(grad, y, dim, true, computed);
    return apply(Formula::softmax_backward, y, {grad, sum}, dtype);
  }
}

template <bool logarithm>
Tensor softmax(const Tensor& self, int64_t dim, OptionalDtype dtype) {
  const at::ScalarType type = softmax_type(kSoftmax<logarithm>, self, dtype);
  const DimMask mask = one_dim(self, dim);
  const Tensor result = result_like(self, type);
  const RowFunction function = logarithm ? RowFunction::log_softmax : RowFunction::softmax;
  const RowsCall call = make_call(function, {self, {}, {}, {}, result}, mask, kSoftmax<logarithm>);
  if (!run_unless_by_parts(call, self)) return softmax_by_parts<logarithm>(self, dim, type);
  return result;
}

template <bool logarithm>
Tensor softmax_meta(const Tensor& self, int64_t dim, OptionalDtype dtype) {
  const at::ScalarType type = softmax_type(kSoftmax<logarithm>, self, dtype);
  one_dim(self, dim);
  return result_like(self, type);
}

template <bool logarithm>
Tensor& softmax_out(const Tensor& self, int64_t dim, OptionalDtype dtype, Tensor& out) {
  const at::ScalarType type = softmax_type(kSoftmax<logarithm>, self, dtype ? dtype : OptionalDtype(out.scalar_type()));
  check_out_dtype(out, type);
  check_out_place(out, self.device());
  TORCH_CHECK(!(at::GradMode::is_enabled() && (self.requires_grad() || out.requires_grad())), kSoftmax<logarithm>,
              "(): functions with out=... arguments don't support automatic differentiation, but one of the arguments requires "
              "grad.");
  const Tensor found = softmax_operator<logarithm>().call(self, dim, type);
  at::native::resize_output_symint(out, found.sym_sizes());
  return out.copy_(found);
}

void check_backward(const char* name, const Tensor& grad, const Tensor& like) {
  TORCH_CHECK(grad.sym_sizes() == like.sym_sizes(), name, "(): grad: expected the size ", like.sym_sizes(), ", but got ",
              grad.sym_sizes());
  TORCH_CHECK(grad.device() == like.device(), name, "(): Expected all tensors to be on the same device, but found ",
              grad.device(), " and ", like.device());
  real_dtype(grad, name);
  real_dtype(like, name);
}

template <bool logarithm>
Tensor softmax_backward(const Tensor& grad, const Tensor& result, int64_t dim, at::ScalarType dtype) {
  const char* const name = kSoftmaxBackward<logarithm>;
  check_backward(name, grad, result);
  TORCH_CHECK(at::isFloatingType(dtype), name, "(): dtype: expected a floating one, but got ", dtype);
  const DimMask mask = one_dim(result, dim);
  const Tensor found = result_like(result, dtype);
  const RowFunction function = logarithm ? RowFunction::log_softmax_backward : RowFunction::softmax_backward;
  if (!run_unless_by_parts(make_call(function, {result, grad, {}, {}, found}, mask, name), result))
    return softmax_backward_by_parts<logarithm>(grad, result, dim, dtype);
  return found;
}

template <bool logarithm>
Tensor softmax_backward_meta(const Tensor& grad, const Tensor& result, int64_t dim, at::ScalarType dtype) {
  check_backward(kSoftmaxBackward<logarithm>, grad, result);
  one_dim(result, dim);
  return result_like(result, dtype);
}

// The same by operators that torch can differentiate again, with the same bits.
template <bool logarithm>
Tensor softmax_backward_composed(const Tensor& grad, const Tensor& result, int64_t dim, at::ScalarType dtype) {
  const at::ScalarType computed = dtype == at::kDouble ? dtype : computed_in({result, grad, {}, {}, {}});
  const Tensor g = grad.to(computed), y = result.to(computed);
  const auto scalar = result.dim() == 0;
  const auto sum = [&](const Tensor& x) { return scalar ? x : total(x, dim); };
  if constexpr (logarithm) {
    const Tensor zeros = at::zeros_like(sum(g)).detach();
    const Tensor powers = apply(Formula::exponent, y, {at::ones_like(zeros), zeros}, computed);
    return rounded(g - powers * sum(g), dtype);
  } else {
    return rounded((g - sum(g * y)) * y, dtype);
  }
}

struct SoftmaxFacts {
  int64_t dim = 0;
  at::ScalarType dtype = at::kFloat;  // of the input

  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.dim);
    f(self.dtype);
  }
};

template <bool logarithm>
struct SoftmaxRule : RuleOf<SoftmaxFacts> {
  static constexpr std::array<bool, 1> kKept = {true};  // the result

  static std::string name() { return logarithm ? "gpureduce_log_softmax_backward" : "gpureduce_softmax_backward"; }

  static variable_list gradients(variable_list grads, const SoftmaxFacts& facts, const std::array<Tensor, 1>& kept) {
    if (!grads[0].defined()) return {Tensor()};
    return {softmax_backward_operator<logarithm>().call(grads[0], kept[0], facts.dim, facts.dtype)};
  }
};

template <bool logarithm>
Tensor softmax_differentiable(c10::DispatchKeySet keys, const Tensor& self, int64_t dim, OptionalDtype dtype) {
  const bool backward = torch::autograd::compute_requires_grad(self) && at::isFloatingType(self.scalar_type());
  const bool forward = torch::autograd::isFwGradDefined(self);
  const at::ScalarType type = softmax_type(kSoftmax<logarithm>, self, dtype);
  // A logarithm of two bytes has too few digits for its exponential.
  if (logarithm && (backward || forward) && c10::elementSize(type) == 2)
    return rounded(softmax_operator<logarithm>().call(self, dim, at::kFloat), type);
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = softmax_operator<logarithm>().redispatch(keys & c10::after_autograd_keyset, self, dim, dtype);
  }
  const auto node = backward ? make_node<SoftmaxRule<logarithm>>() : nullptr;
  if (backward) {
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    node->facts.dim = dim;
    node->facts.dtype = self.scalar_type();
    torch::autograd::set_history(result, node);
  }
  if (forward) {
    const Tensor &tangent = self._fw_grad(/*level=*/0), &primal = self._fw_primal(/*level=*/0);
    Tensor change;
    if constexpr (logarithm) {
      const at::ScalarType computed = computed_in({primal, tangent, {}, {}, result});
      const Tensor t = tangent.to(computed), part = softmax_operator<false>().call(primal, dim, computed) * t;
      change = rounded(t - (part.dim() == 0 ? part : total(part, dim)), type);
    } else {
      change = softmax_backward_operator<false>().call(tangent, result, dim, type);
    }
    result._set_fw_grad(change, /*level=*/0, /*is_inplace_op=*/false);
  }
  if (backward) node->keep(0, result);
  return result;
}

template <bool logarithm>
Tensor softmax_backward_differentiable(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& result, int64_t dim,
                                       at::ScalarType dtype) {
  if (torch::autograd::compute_requires_grad(grad, result) || torch::autograd::isFwGradDefined(grad) ||
      torch::autograd::isFwGradDefined(result))
    return softmax_backward_composed<logarithm>(grad, result, dim, dtype);
  const at::AutoDispatchBelowADInplaceOrView below;
  return softmax_backward_operator<logarithm>().redispatch(keys & c10::after_autograd_keyset, grad, result, dim, dtype);
}

// --- rms_norm and layer_norm ------------------------------------------------------------------------------------------------

DimMask last_dims(const Tensor& input, int64_t dims) {
  DimMask mask(input.dim(), false);
  std::fill(mask.end() - dims, mask.end(), true);
  return mask;
}

void check_norm(const char* name, const Tensor& input, int64_t dims, const Tensor& weight, const Tensor& bias) {
  real_dtype(input, name);
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(input.scalar_type()) && !at::isFloat8Type(input.scalar_type()), name,
                              "(): input: expected float16, bfloat16, float32 or float64, but got ", input.scalar_type());
  TORCH_CHECK(dims >= 1 && dims <= input.dim(), name, "(): dims: expected 1 to ", input.dim(), ", but got ", dims);
  const auto check = [&](const Tensor& x, const char* argument) {
    if (!x.defined()) return;
    TORCH_CHECK(x.sym_sizes() == input.sym_sizes().slice(input.dim() - dims), name, "(): ", argument, ": expected the size ",
                input.sym_sizes().slice(input.dim() - dims), ", but got ", x.sym_sizes());
    TORCH_CHECK(x.device() == input.device(), name, "(): Expected all tensors to be on the same device, but found ", x.device(),
                " and ", input.device());
    real_dtype(x, name);
  };
  check(weight, "weight");
  check(bias, "bias");
}

// A number per row, of the input's dims with those of a row of size 1.
Tensor numbers_like(const Tensor& input, int64_t dims, at::ScalarType dtype) {
  c10::SmallVector<c10::SymInt, kCommonRank> sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  std::fill(sizes.end() - dims, sizes.end(), 1);
  return at::empty_symint(sizes, input.options().dtype(dtype));
}

std::tuple<Tensor, Tensor> rms_norm_meta(const Tensor& input, int64_t dims, const OptionalTensor& weight, double) {
  check_norm("rms_norm", input, dims, of(weight), {});
  return {result_like(input, input.scalar_type()), numbers_like(input, dims, computed_in({input, {}, of(weight), {}, {}}))};
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, int64_t dims, const OptionalTensor& weight, double eps) {
  const auto results = rms_norm_meta(input, dims, weight, eps);
  const auto& [y, r] = results;
  RowsCall call = make_call(RowFunction::rms_norm, {input, {}, of(weight), {}, y}, last_dims(input, dims), "rms_norm");
  call.eps = eps;
  call.r = r.data_ptr();
  run(call, input);
  return results;
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_meta(const Tensor& input, int64_t dims, const OptionalTensor& weight,
                                                   const OptionalTensor& bias, double) {
  check_norm("layer_norm", input, dims, of(weight), of(bias));
  const at::ScalarType computed = computed_in({input, {}, of(weight), of(bias), {}});
  return {result_like(input, input.scalar_type()), numbers_like(input, dims, computed), numbers_like(input, dims, computed)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& input, int64_t dims, const OptionalTensor& weight,
                                              const OptionalTensor& bias, double eps) {
  const auto results = layer_norm_meta(input, dims, weight, bias, eps);
  const auto& [y, mean, r] = results;
  RowsCall call =
      make_call(RowFunction::layer_norm, {input, {}, of(weight), of(bias), y}, last_dims(input, dims), "layer_norm");
  call.eps = eps;
  call.mean = mean.data_ptr();
  call.r = r.data_ptr();
  run(call, input);
  return results;
}

template <bool centered>
constexpr const char* kNormBackward = centered ? "_layer_norm_backward" : "_rms_norm_backward";

at::ScalarType dtype_of_weight(const Tensor& input, const Tensor& weight) {
  return weight.defined() ? weight.scalar_type() : input.scalar_type();
}

// The gradients of input, weight and bias, those that are wanted.
template <bool centered>
std::array<Tensor, 3> norm_backward(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor& mean, const Tensor& r,
                                    const Tensor& weight, const Tensor& bias, std::array<bool, 3> mask) {
  const char* const name = kNormBackward<centered>;
  check_backward(name, grad, input);
  check_norm(name, input, dims, weight, bias);
  std::array<Tensor, 3> found;
  const DimMask across = last_dims(input, dims);
  const at::ScalarType computed = computed_in({input, grad, weight, bias, r});
  const Tensor own_mean = centered ? plain(mean, computed) : Tensor(), own_r = plain(r, computed);
  const auto set_numbers = [&](RowsCall& call) {
    call.wide = computed == at::kDouble;
    call.mean = centered ? own_mean.data_ptr() : nullptr;
    call.r = own_r.data_ptr();
  };
  if (mask[0]) {
    found[0] = result_like(input, input.scalar_type());
    const auto call =
        std::make_unique<RowsCall>(make_call(centered ? RowFunction::layer_norm_backward : RowFunction::rms_norm_backward,
                                             {input, grad, weight, {}, found[0]}, across, name));
    set_numbers(*call);
    run(*call, input);
  }
  if (mask[1] || mask[2]) {
    const auto sizes = input.sizes().slice(input.dim() - dims);
    const auto call = std::make_unique<RowWeightsCall>();
    call->call = make_call(RowFunction::rms_norm_backward, {input, grad, {}, {}, {}}, across, name, false);
    set_numbers(call->call);
    for (int i : {1, 2})
      if (mask[i]) found[i] = at::zeros(sizes, input.options().dtype(computed));
    call->weight = mask[1] ? found[1].data_ptr() : nullptr;
    call->bias = mask[2] ? found[2].data_ptr() : nullptr;
    run(*call, input);
    for (int i : {1, 2})
      if (mask[i]) found[i] = rounded(found[i], dtype_of_weight(input, i == 1 ? weight : bias));
  }
  return found;
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor& r,
                                             const OptionalTensor& weight, double, std::array<bool, 2> mask) {
  auto found = norm_backward<false>(grad, input, dims, {}, r, of(weight), {}, {mask[0], mask[1], false});
  return {found[0], found[1]};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& input, int64_t dims,
                                                       const Tensor& mean, const Tensor& r, const OptionalTensor& weight,
                                                       const OptionalTensor& bias, double, std::array<bool, 3> mask) {
  auto found = norm_backward<true>(grad, input, dims, mean, r, of(weight), of(bias), mask);
  return {found[0], found[1], found[2]};
}

Tensor weight_like(const Tensor& input, int64_t dims, const Tensor& weight) {
  const at::ScalarType dtype = dtype_of_weight(input, weight);
  return at::empty_symint(input.sym_sizes().slice(input.dim() - dims), input.options().dtype(dtype));
}

std::tuple<Tensor, Tensor> rms_norm_backward_meta(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor&,
                                                  const OptionalTensor& weight, double, std::array<bool, 2> mask) {
  check_backward("_rms_norm_backward", grad, input);
  return {mask[0] ? result_like(input, input.scalar_type()) : Tensor(),
          mask[1] ? weight_like(input, dims, of(weight)) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_meta(const Tensor& grad, const Tensor& input, int64_t dims,
                                                            const Tensor&, const Tensor&, const OptionalTensor& weight,
                                                            const OptionalTensor& bias, double, std::array<bool, 3> mask) {
  check_backward("_layer_norm_backward", grad, input);
  return {mask[0] ? result_like(input, input.scalar_type()) : Tensor(),
          mask[1] ? weight_like(input, dims, of(weight)) : Tensor(), mask[2] ? weight_like(input, dims, of(bias)) : Tensor()};
}

// The gradients by operators that torch can differentiate again; what a row's numbers are is computed again, too.
template <bool centered>
std::array<Tensor, 3> norm_backward_composed(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor& given_r,
                                             const Tensor& weight, const Tensor& bias, double eps, std::array<bool, 3> mask) {
  const at::ScalarType computed = computed_in({input, grad, weight, bias, given_r});
  std::vector<int64_t> across, along;
  c10::SymInt length = 1;
  for (int64_t d = 0; d < input.dim(); ++d) {
    (d < input.dim() - dims ? along : across).push_back(d);
    if (d >= input.dim() - dims) length = length * input.sym_size(d);
  }
  const Tensor x = input.to(computed), g = grad.to(computed);
  // torch divides by a number as it multiplies by its inverse, on some devices; this is a division.
  const auto over = [&](const Tensor& sums) { return apply(Formula::quotient, sums, {{}, {}, {}, length}, computed); };
  Tensor h, r;
  if constexpr (centered) {
    static const auto var_mean =
        find<std::tuple<Tensor, Tensor>(const Tensor&, OptionalDims, double, bool, bool, OptionalDtype)>("_var_mean");
    const auto [variance, mean] = var_mean.call(input, at::IntArrayRef(across), 0, false, true, at::kDouble);
    const Tensor root = (variance + eps).sqrt();
    r = (at::ones_like(root).detach() / root).to(computed);
    h = (x - mean.to(computed)) * r;
  } else {
    static const auto powers = functional<Operation::_powsum_2>();
    const Tensor root = (over(powers.call(x, at::IntArrayRef(across), true, std::nullopt)) + eps).sqrt();
    r = at::ones_like(root).detach() / root;
    h = x * r;
  }
  std::array<Tensor, 3> found;
  if (mask[0]) {
    const Tensor d = weight.defined() ? g * weight.to(computed) : g;
    Tensor y = centered ? d - over(total(d, across)) : d;
    found[0] = rounded((y - h * (over(total(d * h, across)))) * r, input.scalar_type());
  }
  const auto over_rows = [&](const Tensor& x, const Tensor& like) {
    const Tensor sums = along.empty() ? x : functional<Operation::sum>().call(x, at::IntArrayRef(along), false, std::nullopt);
    return rounded(sums, dtype_of_weight(input, like));
  };
  if (mask[1]) found[1] = over_rows(g * h, weight);
  if (mask[2]) found[2] = over_rows(g, bias);
  return found;
}

struct NormFacts {
  int64_t dims = 1;
  double eps = 0;

  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.dims);
    f(self.eps);
  }
};

struct RmsNormRule : RuleOf<NormFacts> {
  static constexpr std::array<bool, 3> kKept = {false, true, false};  // input, r, weight

  static std::string name() { return "gpureduce_rms_norm_backward"; }

  static variable_list gradients(variable_list grads, const NormFacts& facts, const std::array<Tensor, 3>& kept) {
    if (!grads[0].defined()) return {Tensor(), Tensor()};
    auto [dx, dw] = rms_norm_backward_operator().call(grads[0], kept[0], facts.dims, kept[1], optional(kept[2]), facts.eps,
                                                      {true, kept[2].defined()});
    return {dx, dw};
  }
};

struct LayerNormRule : RuleOf<NormFacts> {
  static constexpr std::array<bool, 5> kKept = {false, true, true, false, false};  // input, mean, r, weight, bias

  static std::string name() { return "gpureduce_layer_norm_backward"; }

  static variable_list gradients(variable_list grads, const NormFacts& facts, const std::array<Tensor, 5>& kept) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    auto [dx, dw, db] =
        layer_norm_backward_operator().call(grads[0], kept[0], facts.dims, kept[1], kept[2], optional(kept[3]),
                                            optional(kept[4]), facts.eps, {true, kept[3].defined(), kept[4].defined()});
    return {dx, dw, db};
  }
};

// The change of a norm's result y = h * w + b by those of its arguments. The derivative of h by x is symmetric, so that the
// backward pass without a weight gives it.
template <bool centered>
Tensor norm_tangent(const Tensor& input, int64_t dims, const Tensor& mean, const Tensor& r, const Tensor& weight,
                    const Tensor& bias, double eps) {
  const at::ScalarType computed = r.scalar_type();
  const auto tangent_of = [](const Tensor& x) { return x.defined() ? x._fw_grad(/*level=*/0) : Tensor(); };
  const auto primal_of = [](const Tensor& x) { return x.defined() ? x._fw_primal(/*level=*/0) : Tensor(); };
  const Tensor t = tangent_of(input), x = primal_of(input), w = primal_of(weight);
  Tensor change = at::zeros_like(x, x.options().dtype(computed));
  if (t.defined()) {
    const Tensor wide = x.to(computed);
    if constexpr (centered)
      change = std::get<0>(layer_norm_backward_operator().call(t.to(computed), wide, dims, mean, r, std::nullopt, std::nullopt,
                                                               eps, {true, false, false}));
    else
      change = std::get<0>(rms_norm_backward_operator().call(t.to(computed), wide, dims, r, std::nullopt, eps, {true, false}));
    if (w.defined()) change = change * w.to(computed);
  }
  if (const Tensor tw = tangent_of(weight); tw.defined()) {
    const Tensor h = centered ? (x.to(computed) - mean) * r : x.to(computed) * r;
    change = change + h * tw.to(computed);
  }
  if (const Tensor tb = tangent_of(bias); tb.defined()) change = change + tb.to(computed);
  return rounded(change, x.scalar_type());
}

bool has_tangent(const OptionalTensor& x) { return x && x->defined() && torch::autograd::isFwGradDefined(*x); }

std::tuple<Tensor, Tensor> rms_norm_differentiable(c10::DispatchKeySet keys, const Tensor& input, int64_t dims,
                                                   const OptionalTensor& weight, double eps) {
  const Tensor w = of(weight);
  const bool backward = torch::autograd::compute_requires_grad(input, w);
  std::tuple<Tensor, Tensor> results;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    results = rms_norm_operator().redispatch(keys & c10::after_autograd_keyset, input, dims, weight, eps);
  }
  auto& [y, r] = results;
  const auto node = backward ? make_node<RmsNormRule>() : nullptr;
  if (backward) {
    node->set_next_edges(torch::autograd::collect_next_edges(input, w));
    node->facts = {dims, eps};
    torch::autograd::set_history(y, node);
  }
  if (has_tangent(input) || has_tangent(weight))
    y._set_fw_grad(norm_tangent<false>(input, dims, {}, r, w, {}, eps), /*level=*/0, /*is_inplace_op=*/false);
  if (backward) {
    node->keep(0, input);
    node->kept[1] = torch::autograd::SavedVariable(r, false);
    node->keep(2, w);
  }
  return results;
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_differentiable(c10::DispatchKeySet keys, const Tensor& input, int64_t dims,
                                                             const OptionalTensor& weight, const OptionalTensor& bias,
                                                             double eps) {
  const Tensor w = of(weight), b = of(bias);
  const bool backward = torch::autograd::compute_requires_grad(input, w, b);
  std::tuple<Tensor, Tensor, Tensor> results;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    results = layer_norm_operator().redispatch(keys & c10::after_autograd_keyset, input, dims, weight, bias, eps);
  }
  auto& [y, mean, r] = results;
  const auto node = backward ? make_node<LayerNormRule>() : nullptr;
  if (backward) {
    node->set_next_edges(torch::autograd::collect_next_edges(input, w, b));
    node->facts = {dims, eps};
    torch::autograd::set_history(y, node);
  }
  if (has_tangent(input) || has_tangent(weight) || has_tangent(bias))
    y._set_fw_grad(norm_tangent<true>(input, dims, mean, r, w, b, eps), /*level=*/0, /*is_inplace_op=*/false);
  if (backward) {
    node->keep(0, input);
    node->kept[1] = torch::autograd::SavedVariable(mean, false);
    node->kept[2] = torch::autograd::SavedVariable(r, false);
    node->keep(3, w);
    node->keep(4, b);
  }
  return results;
}

std::tuple<Tensor, Tensor> rms_norm_backward_differentiable(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& input,
                                                            int64_t dims, const Tensor& r, const OptionalTensor& weight,
                                                            double eps, std::array<bool, 2> mask) {
  if (is_tracked(grad, input, of(weight))) {
    auto found = norm_backward_composed<false>(grad, input, dims, r, of(weight), {}, eps, {mask[0], mask[1], false});
    return {found[0], found[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return rms_norm_backward_operator().redispatch(keys & c10::after_autograd_keyset, grad, input, dims, r, weight, eps, mask);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_differentiable(c10::DispatchKeySet keys, const Tensor& grad,
                                                                      const Tensor& input, int64_t dims, const Tensor& mean,
                                                                      const Tensor& r, const OptionalTensor& weight,
                                                                      const OptionalTensor& bias, double eps,
                                                                      std::array<bool, 3> mask) {
  if (is_tracked(grad, input, of(weight))) {
    auto found = norm_backward_composed<true>(grad, input, dims, r, of(weight), of(bias), eps, mask);
    return {found[0], found[1], found[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return layer_norm_backward_operator().redispatch(keys & c10::after_autograd_keyset, grad, input, dims, mean, r, weight, bias,
                                                   eps, mask);
}

// --- the functions -------------------------------------------------------------------------------------------------------

// How many of the last dims `shape` names. Raises torch's error if the input does not end with it.
int64_t dims_of_shape(const char* name, const Tensor& input, c10::SymIntArrayRef shape) {
  const int64_t dims = static_cast<int64_t>(shape.size());
  TORCH_CHECK(dims >= 1,
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
              "normalized_shape = ",
              shape);
  const bool ends = input.dim() >= dims && input.sym_sizes().slice(input.dim() - dims) == shape;
  TORCH_CHECK(ends, name, "(): Given normalized_shape=", shape, ", expected input with shape [*, ", shape,
              "], but got input of size ", input.sym_sizes());
  return dims;
}

Tensor rms_norm_of(const Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight, std::optional<double> eps) {
  const int64_t dims = dims_of_shape("rms_norm", input, shape);
  return std::get<0>(rms_norm_operator().call(input, dims, weight, eps.value_or(epsilon_of(input.scalar_type()))));
}

Tensor layer_norm_of(const Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight, const OptionalTensor& bias,
                     double eps) {
  return std::get<0>(layer_norm_operator().call(input, dims_of_shape("layer_norm", input, shape), weight, bias, eps));
}

// --- vmap ----------------------------------------------------------------------------------------------------------------

namespace functorch = at::functorch;

template <bool logarithm>
Tensor softmax_batched(const Tensor& self, int64_t dim, OptionalDtype dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = current_level(kSoftmax<logarithm>);
  const auto [value, batched] = in_front(self, level);
  if (!batched) return softmax_operator<logarithm>().call(value, dim, dtype);
  const int64_t rank = value.dim() - 1;
  const int64_t own = c10::maybe_wrap_dim(dim, rank);
  const Tensor wide = rank == 0 ? value.unsqueeze(1) : value;  // a batch of scalars
  Tensor found = softmax_operator<logarithm>().call(wide, own + 1, dtype);
  return functorch::makeBatched(rank == 0 ? found.squeeze(1) : found, 0, level);
}

template <bool logarithm>
Tensor softmax_backward_batched(const Tensor& grad, const Tensor& result, int64_t dim, at::ScalarType dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = current_level(kSoftmaxBackward<logarithm>);
  auto [g, g_batched] = in_front(grad, level);
  auto [y, y_batched] = in_front(result, level);
  if (!g_batched && !y_batched) return softmax_backward_operator<logarithm>().call(g, y, dim, dtype);
  if (!g_batched) g = g.unsqueeze(0).expand_as(y);
  if (!y_batched) y = y.unsqueeze(0).expand_as(g);
  const int64_t rank = y.dim() - 1, own = c10::maybe_wrap_dim(dim, rank);
  if (rank == 0) {
    g = g.unsqueeze(1);
    y = y.unsqueeze(1);
  }
  Tensor found = softmax_backward_operator<logarithm>().call(g, y, own + 1, dtype);
  return functorch::makeBatched(rank == 0 ? found.squeeze(1) : found, 0, level);
}

// y = h * w + b with a batch of weights: in what the call computes with, rounded once.
Tensor weighted(const Tensor& h, const Batched& weight, const Batched& bias, at::ScalarType dtype) {
  Tensor y = h;
  const auto spread = [&](const Batched& x) {  // as many dims as y has
    Tensor wide = x.value.to(y.scalar_type());
    if (!x.batched) return wide;
    while (wide.dim() < y.dim()) wide = wide.unsqueeze(1);
    return wide;
  };
  if (weight.value.defined()) y = y * spread(weight);
  if (bias.value.defined()) y = y + spread(bias);
  return rounded(y, dtype);
}

std::tuple<Tensor, Tensor> rms_norm_batched(const Tensor& input, int64_t dims, const OptionalTensor& weight, double eps) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = current_level("rms_norm");
  auto x = in_front(input, level);
  const auto w = in_front(of(weight), level);
  if (!x.batched && !w.batched) return rms_norm_operator().call(x.value, dims, weight, eps);
  if (!x.batched)
    x.value = x.value.unsqueeze(0).expand_symint([&] {
      c10::SmallVector<c10::SymInt, kCommonRank> sizes{w.value.sym_size(0)};
      sizes.append(x.value.sym_sizes().begin(), x.value.sym_sizes().end());
      return sizes;
    }());
  const auto batched = [&](Tensor t) { return functorch::makeBatched(std::move(t), 0, level); };
  if (!w.batched) {
    auto [y, r] = rms_norm_operator().call(x.value, dims, optional(w.value), eps);
    return {batched(y), batched(r)};
  }
  const at::ScalarType computed = computed_in({x.value, {}, w.value, {}, {}});
  auto [h, r] = rms_norm_operator().call(x.value.to(computed), dims, std::nullopt, eps);
  return {batched(weighted(h, w, {}, x.value.scalar_type())), batched(r)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_batched(const Tensor& input, int64_t dims, const OptionalTensor& weight,
                                                      const OptionalTensor& bias, double eps) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const int64_t level = current_level("layer_norm");
  auto x = in_front(input, level);
  const auto w = in_front(of(weight), level), b = in_front(of(bias), level);
  if (!x.batched && !w.batched && !b.batched) return layer_norm_operator().call(x.value, dims, weight, bias, eps);
  if (!x.batched)
    x.value = x.value.unsqueeze(0).expand_symint([&] {
      c10::SmallVector<c10::SymInt, kCommonRank> sizes{(w.batched ? w : b).value.sym_size(0)};
      sizes.append(x.value.sym_sizes().begin(), x.value.sym_sizes().end());
      return sizes;
    }());
  const auto batched = [&](Tensor t) { return functorch::makeBatched(std::move(t), 0, level); };
  if (!w.batched && !b.batched) {
    auto [y, mean, r] = layer_norm_operator().call(x.value, dims, optional(w.value), optional(b.value), eps);
    return {batched(y), batched(mean), batched(r)};
  }
  const at::ScalarType computed = computed_in({x.value, {}, w.value, b.value, {}});
  auto [h, mean, r] = layer_norm_operator().call(x.value.to(computed), dims, std::nullopt, std::nullopt, eps);
  return {batched(weighted(h, w, b, x.value.scalar_type())), batched(mean), batched(r)};
}

}  // namespace

}  // namespace gpureduce::rows

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  const auto define = [&](const std::string& schema) { m.def(schema.c_str(), {at::Tag::pt2_compliant_tag}); };
  for (const std::string name : {"softmax", "log_softmax"}) {
    define(name + "(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor");
    define(name + ".out(Tensor self, int dim, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)");
    define("_" + name + "_backward(Tensor grad, Tensor result, int dim, ScalarType dtype) -> Tensor");
  }
  define("_rms_norm(Tensor input, int dims, Tensor? weight, float eps) -> (Tensor, Tensor)");
  define(
      "_rms_norm_backward(Tensor grad, Tensor input, int dims, Tensor r, Tensor? weight, float eps, bool[2] mask) -> "
      "(Tensor, Tensor)");
  define("_layer_norm(Tensor input, int dims, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)");
  define(
      "_layer_norm_backward(Tensor grad, Tensor input, int dims, Tensor mean, Tensor r, Tensor? weight, Tensor? bias, float "
      "eps, "
      "bool[3] mask) -> (Tensor, Tensor, Tensor)");
  define("rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor");
  define(
      "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) -> Tensor");
  composite(m, "rms_norm", TORCH_FN(rows::rms_norm_of));
  composite(m, "layer_norm", TORCH_FN(rows::layer_norm_of));
  composite(m, "softmax.out", TORCH_FN(rows::softmax_out<false>));
  composite(m, "log_softmax.out", TORCH_FN(rows::softmax_out<true>));
}

namespace {

void register_backend(torch::Library& m) {
  using namespace gpureduce::rows;
  m.impl("softmax", &softmax<false>);
  m.impl("log_softmax", &softmax<true>);
  m.impl("_softmax_backward", &softmax_backward<false>);
  m.impl("_log_softmax_backward", &softmax_backward<true>);
  m.impl("_rms_norm", &rms_norm);
  m.impl("_rms_norm_backward", &rms_norm_backward);
  m.impl("_layer_norm", &layer_norm);
  m.impl("_layer_norm_backward", &layer_norm_backward);
}

}  // namespace

TORCH_LIBRARY_IMPL(gpureduce, CPU, m) { register_backend(m); }
#ifdef GPUREDUCE_WITH_CUDA
TORCH_LIBRARY_IMPL(gpureduce, CUDA, m) { register_backend(m); }
#endif
TORCH_LIBRARY_IMPL(gpureduce, Meta, m) {
  using namespace gpureduce::rows;
  m.impl("softmax", &softmax_meta<false>);
  m.impl("log_softmax", &softmax_meta<true>);
  m.impl("_softmax_backward", &softmax_backward_meta<false>);
  m.impl("_log_softmax_backward", &softmax_backward_meta<true>);
  m.impl("_rms_norm", &rms_norm_meta);
  m.impl("_rms_norm_backward", &rms_norm_backward_meta);
  m.impl("_layer_norm", &layer_norm_meta);
  m.impl("_layer_norm_backward", &layer_norm_backward_meta);
}
TORCH_LIBRARY_IMPL(gpureduce, Autograd, m) {
  using namespace gpureduce::rows;
  m.impl("softmax", TORCH_FN(softmax_differentiable<false>));
  m.impl("log_softmax", TORCH_FN(softmax_differentiable<true>));
  m.impl("_softmax_backward", TORCH_FN(softmax_backward_differentiable<false>));
  m.impl("_log_softmax_backward", TORCH_FN(softmax_backward_differentiable<true>));
  m.impl("_rms_norm", TORCH_FN(rms_norm_differentiable));
  m.impl("_rms_norm_backward", TORCH_FN(rms_norm_backward_differentiable));
  m.impl("_layer_norm", TORCH_FN(layer_norm_differentiable));
  m.impl("_layer_norm_backward", TORCH_FN(layer_norm_backward_differentiable));
}
TORCH_LIBRARY_IMPL(gpureduce, FuncTorchBatched, m) {
  using namespace gpureduce::rows;
  m.impl("softmax", TORCH_FN(softmax_batched<false>));
  m.impl("log_softmax", TORCH_FN(softmax_batched<true>));
  m.impl("_softmax_backward", TORCH_FN(softmax_backward_batched<false>));
  m.impl("_log_softmax_backward", TORCH_FN(softmax_backward_batched<true>));
  m.impl("_rms_norm", TORCH_FN(rms_norm_batched));
  m.impl("_layer_norm", TORCH_FN(layer_norm_batched));
}
