// Replaces torch's own reductions with ours. While a replacement is on, aten's kernel for a device is one that calls our op. It
// lies below autograd, autocast and vmap, so these remain torch's; only what torch composes above autograd is taken there
// (impl_composed). The dispatcher keeps a stack of kernels: removing ours restores exactly the original one.
#include <ATen/WrapDimUtilsMulti.h>

#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/all_cpu_dispatch.h>
#include <ATen/ops/amax_cpu_dispatch.h>
#include <ATen/ops/amin_cpu_dispatch.h>
#include <ATen/ops/any_cpu_dispatch.h>
#include <ATen/ops/count_nonzero_cpu_dispatch.h>
#include <ATen/ops/dot_cpu_dispatch.h>
#include <ATen/ops/linalg_vector_norm_cpu_dispatch.h>
#include <ATen/ops/logsumexp_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mean_cpu_dispatch.h>
#include <ATen/ops/nansum_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_cpu_dispatch.h>
#include <ATen/ops/nll_loss2d_backward_cpu_dispatch.h>
#include <ATen/ops/nll_loss2d_forward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_backward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_forward_cpu_dispatch.h>
#include <ATen/ops/prod_cpu_dispatch.h>
#include <ATen/ops/rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/std_cpu_dispatch.h>
#include <ATen/ops/std_mean_cpu_dispatch.h>
#include <ATen/ops/sum_cpu_dispatch.h>
#include <ATen/ops/var_cpu_dispatch.h>
#include <ATen/ops/var_mean_cpu_dispatch.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/ops/_fused_rms_norm_backward_cuda_dispatch.h>
#include <ATen/ops/_fused_rms_norm_cuda_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_cuda_dispatch.h>
#include <ATen/ops/_log_softmax_cuda_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cuda_dispatch.h>
#include <ATen/ops/_softmax_cuda_dispatch.h>
#include <ATen/ops/all_cuda_dispatch.h>
#include <ATen/ops/amax_cuda_dispatch.h>
#include <ATen/ops/amin_cuda_dispatch.h>
#include <ATen/ops/any_cuda_dispatch.h>
#include <ATen/ops/count_nonzero_cuda_dispatch.h>
#include <ATen/ops/dot_cuda_dispatch.h>
#include <ATen/ops/linalg_vector_norm_cuda_dispatch.h>
#include <ATen/ops/mean_cuda_dispatch.h>
#include <ATen/ops/nansum_cuda_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_cuda_dispatch.h>
#include <ATen/ops/native_layer_norm_cuda_dispatch.h>
#include <ATen/ops/nll_loss2d_backward_cuda_dispatch.h>
#include <ATen/ops/nll_loss2d_forward_cuda_dispatch.h>
#include <ATen/ops/nll_loss_backward_cuda_dispatch.h>
#include <ATen/ops/nll_loss_forward_cuda_dispatch.h>
#include <ATen/ops/prod_cuda_dispatch.h>
#include <ATen/ops/std_cuda_dispatch.h>
#include <ATen/ops/std_mean_cuda_dispatch.h>
#include <ATen/ops/sum_cuda_dispatch.h>
#include <ATen/ops/var_cuda_dispatch.h>
#include <ATen/ops/var_mean_cuda_dispatch.h>
#endif

#include <cmath>
#include <memory>
#include <mutex>

#include "../rows/torch.h"
#include "torch.h"

namespace gpureduce::replacing {

namespace {

// torch's own kernels.
struct torch_sum { GPUREDUCE_ORIGINAL(sum) };
struct torch_mean { GPUREDUCE_ORIGINAL(mean) };
struct torch_nansum { GPUREDUCE_ORIGINAL(nansum) };
struct torch_prod { GPUREDUCE_ORIGINAL(prod) };
struct torch_amax { GPUREDUCE_ORIGINAL(amax) };
struct torch_amin { GPUREDUCE_ORIGINAL(amin) };
struct torch_any { GPUREDUCE_ORIGINAL(any) };
struct torch_all { GPUREDUCE_ORIGINAL(all) };
struct torch_linalg_vector_norm { GPUREDUCE_ORIGINAL(linalg_vector_norm) };
struct torch_var { GPUREDUCE_ORIGINAL(var) };
struct torch_std { GPUREDUCE_ORIGINAL(std) };
struct torch_count_nonzero { GPUREDUCE_ORIGINAL_WITHOUT_OUT(count_nonzero) };
struct torch_var_mean { GPUREDUCE_ORIGINAL_WITHOUT_OUT(var_mean) };
struct torch_std_mean { GPUREDUCE_ORIGINAL_WITHOUT_OUT(std_mean) };
struct torch_dot { GPUREDUCE_ORIGINAL_WITHOUT_OUT(dot) };
struct torch_softmax { GPUREDUCE_ORIGINAL(_softmax) };
struct torch_log_softmax { GPUREDUCE_ORIGINAL(_log_softmax) };
struct torch_softmax_backward { GPUREDUCE_ORIGINAL(_softmax_backward_data) };
struct torch_log_softmax_backward { GPUREDUCE_ORIGINAL(_log_softmax_backward_data) };
struct torch_layer_norm { GPUREDUCE_ORIGINAL_WITHOUT_OUT(native_layer_norm) };
struct torch_layer_norm_backward { GPUREDUCE_ORIGINAL_WITHOUT_OUT(native_layer_norm_backward) };
struct torch_nll_loss_backward { GPUREDUCE_ORIGINAL(nll_loss_backward_symint) };
struct torch_nll_loss2d_backward { GPUREDUCE_ORIGINAL(nll_loss2d_backward_symint) };
struct torch_nll_loss { GPUREDUCE_ORIGINAL_PAIR(nll_loss_forward_symint) };
struct torch_nll_loss2d { GPUREDUCE_ORIGINAL_PAIR(nll_loss2d_forward_symint) };
// True if ours takes the call. Other calls go to the original kernel, which also raises the errors.
template <Operation op>
bool is_taken(const at::Tensor& self, OptionalDtype dtype) {
  constexpr OperationInfo row = info(op);
  const at::ScalarType type = self.scalar_type();
  if (!is_common(type) || has_names(self, 0) || self.dim() > static_cast<int64_t>(at::dim_bitset_size)) return false;
  if (is_wide_unsigned(type) && self.is_cuda()) return false;  // torch has no kernels
  if (!takes_complex(op) && (at::isComplexType(type) || (dtype && at::isComplexType(*dtype)))) return false;
  if (row.typing == Typing::same && is_empty(self)) return false;
  if (row.typing == Typing::log && (!at::isFloatingType(type) || is_empty(self))) return false;
  if (row.typing == Typing::real && at::isFloatingType(type) && dtype && !at::isFloatingType(*dtype)) return false;
  if (row.typing == Typing::mean || row.typing == Typing::norm) {
    if (!at::isFloatingType(type) && !at::isComplexType(type)) return false;
    if (dtype && *dtype != type && (row.typing == Typing::norm || !at::isFloatingType(*dtype))) return false;
  }
  return is_result(result_type(op, type, dtype), self.device());
}

template <Operation op>
bool is_taken_into(const at::Tensor& self, OptionalDtype dtype, const at::Tensor& out) {
  constexpr bool kSum = info(op).has_dtype();
  const at::ScalarType result = out.scalar_type();
  const OptionalDtype asked = kSum ? OptionalDtype(result) : dtype;
  return is_taken<op>(self, asked) && result_type(op, self.scalar_type(), asked) == result &&
         (!kSum || dtype.value_or(result) == result) && is_plain_out(out, self, result);
}

// Calls ours if it takes the call, otherwise the original by `otherwise`.
template <Operation op, bool traced, class Otherwise>
at::Tensor reduce(Keys keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype, Otherwise otherwise) {
  if (!is_taken<op>(self, dtype)) return otherwise();
  return call_ours<traced>(keys, functional(op), self, dim, keepdim, dtype);
}
template <Operation op, class Otherwise>
at::Tensor& reduce_out(Keys keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype, at::Tensor& out,
                       Otherwise otherwise) {
  if (!is_taken_into<op>(self, dtype, out)) return otherwise();
  constexpr bool kSum = info(op).has_dtype();
  return out_variant(op).redispatch(below(keys), self, dim, keepdim, kSum ? OptionalDtype(out.scalar_type()) : dtype, out);
}

// aten's kernels, by their arguments. All of them are plain functions, so removing them from the dispatcher's stack frees
// nothing that a call in another thread may still need.
template <Operation op, class Torch>
struct Kernels {
  // dim, keepdim, dtype
  template <bool traced>
  static at::Tensor full(Keys keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
    return reduce<op, traced>(keys, self, dim, keepdim, dtype,
                              [&] { return Torch::template call<traced>(keys, self, dim, keepdim, dtype); });
  }
  static at::Tensor& full_out(Keys keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                              at::Tensor& out) {
    return reduce_out<op>(keys, self, dim, keepdim, dtype, out,
                          [&]() -> at::Tensor& { return Torch::out(keys, out, self, dim, keepdim, dtype); });
  }
  // dims, keepdim; if dims may be None, an empty list reduces nothing
  template <bool traced, class Dims>
  static at::Tensor plain(Keys keys, const at::Tensor& self, Dims dim, bool keepdim) {
    const auto otherwise = [&] { return Torch::template call<traced>(keys, self, dim, keepdim); };
    return is_nothing(dim) ? otherwise() : reduce<op, traced>(keys, self, dim, keepdim, {}, otherwise);
  }
  template <class Dims>
  static at::Tensor& plain_out(Keys keys, const at::Tensor& self, Dims dim, bool keepdim, at::Tensor& out) {
    const auto otherwise = [&]() -> at::Tensor& { return Torch::out(keys, out, self, dim, keepdim); };
    return is_nothing(dim) ? otherwise() : reduce_out<op>(keys, self, dim, keepdim, {}, out, otherwise);
  }
  static bool is_nothing(at::IntArrayRef) { return false; }
  static bool is_nothing(OptionalDims dim) { return dim.has_value() && dim->empty(); }
  // one dim, keepdim; some have dtype
  template <bool traced, class... Dtype>
  static at::Tensor one(Keys keys, const at::Tensor& self, int64_t dim, bool keepdim, Dtype... dtype) {
    return reduce<op, traced>(keys, self, dim, keepdim, {dtype...},
                              [&] { return Torch::template call<traced>(keys, self, dim, keepdim, dtype...); });
  }
  template <class... Dtype>
  static at::Tensor& one_out(Keys keys, const at::Tensor& self, int64_t dim, bool keepdim, Dtype... dtype, at::Tensor& out) {
    return reduce_out<op>(keys, self, dim, keepdim, {dtype...}, out,
                          [&]() -> at::Tensor& { return Torch::out(keys, out, self, dim, keepdim, dtype...); });
  }
  // all; some have dtype
  template <bool traced, class... Dtype>
  static at::Tensor all(Keys keys, const at::Tensor& self, Dtype... dtype) {
    return reduce<op, traced>(keys, self, std::nullopt, false, {dtype...},
                              [&] { return Torch::template call<traced>(keys, self, dtype...); });
  }
  static at::Tensor& all_out(Keys keys, const at::Tensor& self, at::Tensor& out) {
    return reduce_out<op>(keys, self, std::nullopt, false, {}, out,
                          [&]() -> at::Tensor& { return Torch::out(keys, out, self); });
  }
};

// The norms that we have; other orders are left to torch.
struct Norm {
  template <class Known, class Otherwise>
  static auto with_order(const at::Scalar& ord, Known known, Otherwise otherwise) {
    const double order = ord.isComplex() ? std::numeric_limits<double>::quiet_NaN() : ord.toDouble();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (order == 0) return known(std::integral_constant<Operation, Operation::_norm_0>());
    if (order == 1) return known(std::integral_constant<Operation, Operation::_norm_1>());
    if (order == 2) return known(std::integral_constant<Operation, Operation::_norm_2>());
    if (order == 3) return known(std::integral_constant<Operation, Operation::_norm_3>());
    if (order == kInfinity) return known(std::integral_constant<Operation, Operation::_norm_inf>());
    if (order == -kInfinity) return known(std::integral_constant<Operation, Operation::_norm_neg_inf>());
    return otherwise();
  }
  template <bool traced>
  static at::Tensor full(Keys keys, const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim,
                         OptionalDtype dtype) {
    const auto otherwise = [&] { return torch_linalg_vector_norm::call<traced>(keys, self, ord, dim, keepdim, dtype); };
    if (is_empty(self)) return otherwise();
    return with_order(
        ord, [&](auto op) { return reduce<op.value, traced>(keys, self, dim, keepdim, dtype, otherwise); }, otherwise);
  }
  static at::Tensor& full_out(Keys keys, const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim,
                              OptionalDtype dtype, at::Tensor& out) {
    const auto otherwise = [&]() -> std::reference_wrapper<at::Tensor> {
      return torch_linalg_vector_norm::out(keys, out, self, ord, dim, keepdim, dtype);
    };
    if (self.numel() == 0) return otherwise();
    const auto known = [&](auto op) -> std::reference_wrapper<at::Tensor> {
      return reduce_out<op.value>(keys, self, dim, keepdim, dtype, out, [&]() -> at::Tensor& { return otherwise(); });
    };
    return with_order(ord, known, otherwise);
  }
};

struct Count {
  static constexpr Operation op = Operation::_count_nonzero;
  template <bool traced>
  static at::Tensor dims(Keys keys, const at::Tensor& self, at::IntArrayRef dim) {
    const auto otherwise = [&] { return torch_count_nonzero::call<traced>(keys, self, dim); };
    if (!is_result(self.scalar_type(), self.device())) return otherwise();
    return reduce<op, traced>(keys, self, dim, false, {}, otherwise);
  }
};

// torch has one kernel for all devices, which refuses an empty list of dims.
struct Logarithm {
  static constexpr Operation op = Operation::_logsumexp;
  template <bool traced>
  static at::Tensor dims(Keys keys, const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
    const auto otherwise = [&] { return traced ? at::Tensor() : at::compositeexplicitautograd::logsumexp(self, dim, keepdim); };
    return dim.empty() ? otherwise() : reduce<op, traced>(keys, self, dim, keepdim, {}, otherwise);
  }
};

// Variances have an operator with two results. Calls without degrees of freedom are left to torch, which warns.
struct Variance {
  using Correction = std::optional<at::Scalar>;
  using Pair = std::tuple<at::Tensor, at::Tensor>;

  static bool is_taken(const at::Tensor& self, OptionalDims dim, const Correction& correction) {
    const at::ScalarType type = self.scalar_type();
    if (!is_common(type) || !at::isFloatingType(type) || has_names(self, 0) || is_empty(self)) return false;
    if (self.dim() > static_cast<int64_t>(at::dim_bitset_size) || (correction && correction->isComplex())) return false;
    const DimMask reduce = reduced_dims(dim, self.dim());
    c10::SymInt count = 1;
    for (int64_t d = 0; d < self.dim(); ++d)
      if (reduce[d]) count *= self.sym_size(d);
    const double most = std::floor(number(correction));  // the largest count without degrees of freedom
    return most < 0x1p62 && TORCH_GUARD_OR_TRUE(count.sym_gt(static_cast<int64_t>(std::max(most, -1.0))));
  }
  static double number(const Correction& correction) { return correction ? correction->toDouble() : 1; }
  template <bool traced>
  static Pair both(Keys keys, const at::Tensor& self, OptionalDims dim, const Correction& correction, bool root, bool keepdim) {
    return call_ours<traced>(keys, var_mean_operator(), self, dim, number(correction), root, keepdim, OptionalDtype());
  }
  template <class Torch, bool root, bool traced>
  static Pair pair(Keys keys, const at::Tensor& self, OptionalDims dim, const Correction& correction, bool keepdim) {
    if (!is_taken(self, dim, correction)) return Torch::template call<traced>(keys, self, dim, correction, keepdim);
    return both<traced>(keys, self, dim, correction, root, keepdim);
  }
  template <class Torch, bool root, bool traced>
  static at::Tensor one(Keys keys, const at::Tensor& self, OptionalDims dim, const Correction& correction, bool keepdim) {
    if (!is_taken(self, dim, correction)) return Torch::template call<traced>(keys, self, dim, correction, keepdim);
    return std::get<0>(both<traced>(keys, self, dim, correction, root, keepdim));
  }
  template <class Torch, bool root>
  static at::Tensor& one_out(Keys keys, const at::Tensor& self, OptionalDims dim, const Correction& correction, bool keepdim,
                             at::Tensor& out) {
    if (!is_taken(self, dim, correction) || !is_plain_out(out, self, self.scalar_type()))
      return Torch::out(keys, out, self, dim, correction, keepdim);
    return write(out, std::get<0>(both<false>(keys, self, dim, correction, root, keepdim)));
  }
};

template <bool traced>
at::Tensor dot(Keys keys, const at::Tensor& self, const at::Tensor& other) {
  const at::ScalarType type = self.scalar_type();
  const bool taken = is_common(type) && at::isFloatingType(type) && type == other.scalar_type() && self.dim() == 1 &&
                     other.dim() == 1 && TORCH_GUARD_OR_TRUE(self.sym_size(0).sym_eq(other.sym_size(0))) &&
                     self.device() == other.device() && !has_names(self, 0) && !has_names(other, 0);
  if (!taken) return torch_dot::call<traced>(keys, self, other);
  return call_ours<traced>(keys, weighted_sum_operator(), self, other, OptionalDims(), false, OptionalDtype(type));
}

// True for tensors of a dtype that ours takes, with elements, and without names.
bool is_float_row(const at::Tensor& x) {
  return is_common(x.scalar_type()) && at::isFloatingType(x.scalar_type()) && x.dim() > 0 && !is_empty(x) && !has_names(x, 0);
}

// A function in torch's forms: with new results, and with one or two that are given. Function::is_taken has torch's arguments,
// and says whether ours takes them; ours() calls it; all results have one dtype, result().
template <class Function, class = decltype(Function::is_taken)>
struct Forms;
template <class Function, class... Rest>
struct Forms<Function, bool(const at::Tensor&, Rest...)> {
  using Torch = typename Function::Torch;

  template <bool traced>
  static auto made(Keys keys, const at::Tensor& first, Rest... rest) {
    if (!Function::is_taken(first, rest...)) return Torch::template call<traced>(keys, first, rest...);
    return Function::template ours<traced>(keys, first, rest...);
  }
  static at::Tensor& into(Keys keys, const at::Tensor& first, Rest... rest, at::Tensor& out) {
    if (!is_taken_into(first, rest..., out)) return Torch::out(keys, out, first, rest...);
    return write(out, Function::template ours<false>(keys, first, rest...));
  }
  static std::tuple<at::Tensor&, at::Tensor&> into_both(Keys keys, const at::Tensor& first, Rest... rest, at::Tensor& out,
                                                        at::Tensor& second_out) {
    if (!is_taken_into(first, rest..., out) || !is_plain_out(second_out, first, out.scalar_type()))
      return Torch::out(keys, out, second_out, first, rest...);
    const auto [found, second] = Function::template ours<false>(keys, first, rest...);
    return {write(out, found), write(second_out, second)};
  }

 private:
  static bool is_taken_into(const at::Tensor& first, Rest... rest, const at::Tensor& out) {
    return Function::is_taken(first, rest...) && is_plain_out(out, first, Function::result(first, rest...));
  }
};

// Of an operator of ours that takes torch's arguments.
template <auto handle>
struct Alike {
  template <bool traced, class... Args>
  static auto ours(Keys keys, const Args&... args) {
    return call_ours<traced>(keys, handle(), args...);
  }
};
struct OfFirstDtype {
  template <class... Rest>
  static at::ScalarType result(const at::Tensor& first, const Rest&...) {
    return first.scalar_type();
  }
};

bool is_softmax_taken(const at::Tensor& self, int64_t dim) {
  return is_float_row(self) && dim >= -self.dim() && dim < self.dim();
}

template <bool logarithm>
struct Softmax {
  using Torch = std::conditional_t<logarithm, torch_log_softmax, torch_softmax>;

  static bool is_taken(const at::Tensor& self, int64_t dim, bool to_float) {
    return is_softmax_taken(self, dim) && (!to_float || (self.is_cuda() && self.scalar_type() == at::kHalf));
  }
  static at::ScalarType result(const at::Tensor& self, int64_t, bool to_float) {
    return to_float ? at::kFloat : self.scalar_type();
  }
  template <bool traced>
  static at::Tensor ours(Keys keys, const at::Tensor& self, int64_t dim, bool to_float) {
    return call_ours<traced>(keys, rows::softmax_operator<logarithm>(), self, dim, OptionalDtype(result(self, dim, to_float)));
  }
};

template <bool logarithm>
struct SoftmaxBackward : Alike<rows::softmax_backward_operator<logarithm>> {
  using Torch = std::conditional_t<logarithm, torch_log_softmax_backward, torch_softmax_backward>;

  static bool is_taken(const at::Tensor& grad, const at::Tensor& result, int64_t dim, at::ScalarType dtype) {
    const at::ScalarType type = result.scalar_type();
    const bool is_pair = dtype == type || (result.is_cuda() && dtype == at::kHalf && type == at::kFloat);
    return is_softmax_taken(result, dim) && is_float_row(grad) && grad.sym_sizes() == result.sym_sizes() &&
           grad.device() == result.device() && grad.scalar_type() == type && is_pair;
  }
  static at::ScalarType result(const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType dtype) { return dtype; }
};

// How many dims a norm takes, of an input that ends with `shape`; 0 where ours does not take the call.
int64_t norm_dims(const at::Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                  const OptionalTensor& bias) {
  const int64_t dims = static_cast<int64_t>(shape.size());
  if (!is_float_row(input) || dims < 1 || dims > input.dim()) return 0;
  const auto ends = [&](c10::SymIntArrayRef sizes) {
    for (int64_t d = 0; d < dims; ++d)
      if (!TORCH_GUARD_OR_FALSE(sizes[sizes.size() - dims + d].sym_eq(shape[d]))) return false;
    return true;
  };
  if (!ends(input.sym_sizes())) return 0;
  for (const auto* x : {&weight, &bias}) {
    if (!*x || !(*x)->defined()) continue;
    const at::Tensor& w = **x;
    if (!is_common(w.scalar_type()) || !at::isFloatingType(w.scalar_type()) || w.dim() != dims || !ends(w.sym_sizes()) ||
        w.device() != input.device())
      return 0;
  }
  return dims;
}

// Whether torch takes weights of these dtypes: the input's, and on the CPU float32 ones beside halves.
bool are_dtypes_taken(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias) {
  const auto all = [&](at::ScalarType type) {
    const auto is = [&](const OptionalTensor& x) { return !x || !x->defined() || x->scalar_type() == type; };
    return is(weight) && is(bias);
  };
  return all(input.scalar_type()) || (input.is_cpu() && c10::elementSize(input.scalar_type()) == 2 && all(at::kFloat));
}

struct LayerNorm {
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

  template <bool traced>
  static Three forward(Keys keys, const at::Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                       const OptionalTensor& bias, double eps) {
    const int64_t dims = norm_dims(input, shape, weight, bias);
    if (dims == 0 || !are_dtypes_taken(input, weight, bias))
      return torch_layer_norm::call<traced>(keys, input, C10_AS_INTARRAYREF_SLOW(shape), weight, bias, eps);
    return call_ours<traced>(keys, rows::layer_norm_operator(), input, dims, weight, bias, eps);
  }
  template <bool traced>
  static Three backward(Keys keys, const at::Tensor& grad, const at::Tensor& input, c10::SymIntArrayRef shape,
                        const at::Tensor& mean, const at::Tensor& r, const OptionalTensor& weight, const OptionalTensor& bias,
                        std::array<bool, 3> mask) {
    const int64_t dims = norm_dims(input, shape, weight, bias);
    if (dims == 0 || grad.sym_sizes() != input.sym_sizes() || !is_float_row(grad) ||
        grad.scalar_type() != input.scalar_type() || !are_dtypes_taken(input, weight, bias))
      return torch_layer_norm_backward::call<traced>(keys, grad, input, C10_AS_INTARRAYREF_SLOW(shape), mean, r, weight, bias,
                                                     mask);
    return call_ours<traced>(keys, rows::layer_norm_backward_operator(), grad, input, dims, mean, r, weight, bias, 0.0, mask);
  }
};

// torch's kernels for CUDA.
struct RmsNorm {
  using Two = std::tuple<at::Tensor, at::Tensor>;

  template <bool traced>
  static Two forward(Keys keys, const at::Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                     std::optional<double> eps) {
    const int64_t dims = norm_dims(input, c10::fromIntArrayRefSlow(shape), weight, {});
    if (dims == 0 || !are_dtypes_taken(input, weight, {})) return theirs<traced>(keys, input, shape, weight, eps);
    return call_ours<traced>(keys, rows::rms_norm_operator(), input, dims, weight,
                             eps.value_or(rows::epsilon_of(input.scalar_type())));
  }
  template <bool traced>
  static Two backward(Keys keys, const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef shape, const at::Tensor& r,
                      const OptionalTensor& weight, std::array<bool, 2> mask) {
    const int64_t dims = norm_dims(input, c10::fromIntArrayRefSlow(shape), weight, {});
    if (dims == 0 || grad.sizes() != input.sizes() || !is_float_row(grad) || grad.scalar_type() != input.scalar_type() ||
        !are_dtypes_taken(input, weight, {}))
      return theirs<traced>(keys, grad, input, shape, r, weight, mask);
    return call_ours<traced>(keys, rows::rms_norm_backward_operator(), grad, input, dims, r, weight, 0.0, mask);
  }

 private:
  template <bool traced>
  static Two theirs(Keys keys, const at::Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                    std::optional<double> eps) {
#ifdef GPUREDUCE_WITH_CUDA
    if (!traced && on_cuda(keys)) return at::cuda::_fused_rms_norm(input, shape, weight, eps);
#endif
    return {};
  }
  template <bool traced>
  static Two theirs(Keys keys, const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef shape, const at::Tensor& r,
                    const OptionalTensor& weight, std::array<bool, 2> mask) {
#ifdef GPUREDUCE_WITH_CUDA
    if (!traced && on_cuda(keys)) return at::cuda::_fused_rms_norm_backward(grad, input, shape, r, weight, mask);
#endif
    return {};
  }
};

// On the CPU torch composes the function of others above autograd. So this lies there, too, and has our own derivatives.
at::Tensor composed_rms_norm(const at::Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                             std::optional<double> eps) {
  const int64_t dims = norm_dims(input, shape, weight, {});
  if (dims == 0) return at::compositeimplicitautograd::rms_norm_symint(input, shape, weight, eps);
  const at::Tensor y =
      std::get<0>(rows::rms_norm_operator().call(input, dims, weight, eps.value_or(rows::epsilon_of(input.scalar_type()))));
  return y.contiguous(input.suggest_memory_format());  // which torch keeps here alone
}

// Losses of indices of classes. torch has kernels for (C) and (N, C), and others for (N, C, H, W), which all shapes become.
template <bool images>
struct NllLoss : Alike<rows::nll_loss_operator>, OfFirstDtype {
  using Torch = std::conditional_t<images, torch_nll_loss2d, torch_nll_loss>;

  static bool is_taken(const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight, int64_t reduction,
                       c10::SymInt) {
    const int64_t rank = self.dim(), classes = rank == 1 ? 0 : 1;
    if (!is_float_row(self) || (images ? rank != 4 : rank > 2) || target.dim() != rank - 1) return false;
    const bool is_index = target.scalar_type() == at::kLong || (!images && target.scalar_type() == at::kByte);
    if (!is_index || target.device() != self.device() || has_names(target, 0) || reduction < at::Reduction::None ||
        reduction >= at::Reduction::END)
      return false;
    const auto agree = [&](const at::Tensor& x, int64_t d, int64_t own) {
      return TORCH_GUARD_OR_FALSE(x.sym_size(d).sym_eq(self.sym_size(own)));
    };
    for (int64_t d = 0; d < rank - 1; ++d)
      if (!agree(target, d, d < classes ? d : d + 1)) return false;
    if (!weight || !weight->defined()) return true;
    return weight->scalar_type() == self.scalar_type() && weight->device() == self.device() && weight->dim() == 1 &&
           agree(*weight, 0, classes);
  }
};

template <bool images>
struct NllLossBackward : Alike<rows::nll_loss_backward_operator>, OfFirstDtype {
  using Torch = std::conditional_t<images, torch_nll_loss2d_backward, torch_nll_loss_backward>;

  static bool is_taken(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight,
                       int64_t reduction, c10::SymInt ignore_index, const at::Tensor& total_weight) {
    const auto is_like = [&](const at::Tensor& x) {
      return x.scalar_type() == self.scalar_type() && x.device() == self.device();
    };
    if (!NllLoss<images>::is_taken(self, target, weight, reduction, std::move(ignore_index)) || !is_like(grad) ||
        !is_like(total_weight) || total_weight.dim() != 0 || (images && !self.is_contiguous_or_false()))
      return false;
    if (reduction != at::Reduction::None) return grad.dim() == 0;
    return grad.sym_sizes() == target.sym_sizes();
  }
};

void register_sum(Table& m) {
  using K = Kernels<Operation::sum, torch_sum>;
  m.impl("sum.dim_IntList", TORCH_FN(K::full<false>), K::full<true>);
  m.impl_on_device("sum.IntList_out", TORCH_FN(K::full_out));
}
void register_mean(Table& m) {
  using K = Kernels<Operation::mean, torch_mean>;
  m.impl("mean.dim", TORCH_FN(K::full<false>), K::full<true>);
  m.impl_on_device("mean.out", TORCH_FN(K::full_out));
}
void register_nansum(Table& m) {
  using K = Kernels<Operation::nansum, torch_nansum>;
  m.impl("nansum", TORCH_FN(K::full<false>), K::full<true>);
  m.impl_on_device("nansum.out", TORCH_FN(K::full_out));
}
void register_prod(Table& m) {
  using K = Kernels<Operation::prod, torch_prod>;
  m.impl("prod", TORCH_FN((K::all<false, OptionalDtype>)), K::all<true, OptionalDtype>);
  m.impl("prod.dim_int", TORCH_FN((K::one<false, OptionalDtype>)), K::one<true, OptionalDtype>);
  m.impl_on_device("prod.int_out", TORCH_FN(K::one_out<OptionalDtype>));
}
void register_amax(Table& m) {
  using K = Kernels<Operation::_amax, torch_amax>;
  m.impl("amax", TORCH_FN((K::plain<false, at::IntArrayRef>)), K::plain<true, at::IntArrayRef>);
  m.impl_on_device("amax.out", TORCH_FN(K::plain_out<at::IntArrayRef>));
}
void register_amin(Table& m) {
  using K = Kernels<Operation::_amin, torch_amin>;
  m.impl("amin", TORCH_FN((K::plain<false, at::IntArrayRef>)), K::plain<true, at::IntArrayRef>);
  m.impl_on_device("amin.out", TORCH_FN(K::plain_out<at::IntArrayRef>));
}
template <Operation op, class Torch>
void register_truth(Table& m, const std::string& name) {
  using K = Kernels<op, Torch>;
  m.impl(name, TORCH_FN(K::template all<false>), K::template all<true>);
  m.impl_on_device(name + ".all_out", TORCH_FN(K::all_out));
  m.impl(name + ".dim", TORCH_FN(K::template one<false>), K::template one<true>);
  m.impl_on_device(name + ".out", TORCH_FN(K::template one_out<>));
  m.impl(name + ".dims", TORCH_FN((K::template plain<false, OptionalDims>)), K::template plain<true, OptionalDims>);
  m.impl_on_device(name + ".dims_out", TORCH_FN(K::template plain_out<OptionalDims>));
}
void register_any(Table& m) { register_truth<Operation::_any, torch_any>(m, "any"); }
void register_all(Table& m) { register_truth<Operation::_all, torch_all>(m, "all"); }
void register_count_nonzero(Table& m) { m.impl("count_nonzero.dim_IntList", TORCH_FN(Count::dims<false>), Count::dims<true>); }
void register_vector_norm(Table& m) {
  m.impl("linalg_vector_norm", TORCH_FN(Norm::full<false>), Norm::full<true>);
  m.impl_on_device("linalg_vector_norm.out", TORCH_FN(Norm::full_out));
}
void register_logsumexp(Table& m) { m.impl("logsumexp", TORCH_FN(Logarithm::dims<false>), Logarithm::dims<true>); }
void register_var(Table& m) {
  m.impl("var.correction", TORCH_FN((Variance::one<torch_var, false, false>)), Variance::one<torch_var, false, true>);
  m.impl_on_device("var.correction_out", TORCH_FN((Variance::one_out<torch_var, false>)));
}
void register_std(Table& m) {
  m.impl("std.correction", TORCH_FN((Variance::one<torch_std, true, false>)), Variance::one<torch_std, true, true>);
  m.impl_on_device("std.correction_out", TORCH_FN((Variance::one_out<torch_std, true>)));
}
void register_var_mean(Table& m) {
  m.impl("var_mean.correction", TORCH_FN((Variance::pair<torch_var_mean, false, false>)),
         Variance::pair<torch_var_mean, false, true>);
}
void register_std_mean(Table& m) {
  m.impl("std_mean.correction", TORCH_FN((Variance::pair<torch_std_mean, true, false>)),
         Variance::pair<torch_std_mean, true, true>);
}
void register_dot(Table& m) { m.impl("dot", TORCH_FN(dot<false>), dot<true>); }

template <class Function>
void register_forms(Table& m, const std::string& name, const char* out) {
  m.impl(name, TORCH_FN(Forms<Function>::template made<false>), Forms<Function>::template made<true>);
  m.impl_on_device(name + out, TORCH_FN(Forms<Function>::into));
}
void register_softmax(Table& m) {
  register_forms<Softmax<false>>(m, "_softmax", ".out");
  register_forms<SoftmaxBackward<false>>(m, "_softmax_backward_data", ".out");
}
void register_log_softmax(Table& m) {
  register_forms<Softmax<true>>(m, "_log_softmax", ".out");
  register_forms<SoftmaxBackward<true>>(m, "_log_softmax_backward_data", ".out");
}
void register_layer_norm(Table& m) {
  m.impl("native_layer_norm", TORCH_FN(LayerNorm::forward<false>), LayerNorm::forward<true>);
  m.impl("native_layer_norm_backward", TORCH_FN(LayerNorm::backward<false>), LayerNorm::backward<true>);
}
void register_rms_norm(Table& m) {
  if (m.device == DispatchKey::CPU) {
    m.impl_composed("rms_norm", TORCH_FN(composed_rms_norm));
  } else {
    m.impl("_fused_rms_norm", TORCH_FN(RmsNorm::forward<false>), RmsNorm::forward<true>);
    m.impl("_fused_rms_norm_backward", TORCH_FN(RmsNorm::backward<false>), RmsNorm::backward<true>);
  }
}
template <bool images>
void register_nll_loss_of(Table& m, const std::string& name) {
  m.impl(name + "_forward", TORCH_FN(Forms<NllLoss<images>>::template made<false>),
         Forms<NllLoss<images>>::template made<true>);
  m.impl_on_device(name + "_forward.output", TORCH_FN(Forms<NllLoss<images>>::into_both));
  register_forms<NllLossBackward<images>>(m, name + "_backward", ".grad_input");
}
void register_nll_loss(Table& m) {
  register_nll_loss_of<false>(m, "nll_loss");
  register_nll_loss_of<true>(m, "nll_loss2d");
}

// The functions that can be replaced, by torch's names.
#define GPUREDUCE_REPLACED(X) \
  X(sum)                      \
  X(mean)                     \
  X(nansum)                   \
  X(prod)                     \
  X(amax)                     \
  X(amin)                     \
  X(any)                      \
  X(all)                      \
  X(count_nonzero)            \
  X(vector_norm)              \
  X(logsumexp)                \
  X(var)                      \
  X(std)                      \
  X(var_mean)                 \
  X(std_mean)                 \
  X(dot)                      \
  X(softmax)                  \
  X(log_softmax)              \
  X(layer_norm)               \
  X(rms_norm)                 \
  X(nll_loss)

const Functions& replaced() {
  static auto* const all = [] {
    auto* functions = new Functions{GPUREDUCE_REPLACED(GPUREDUCE_FUNCTION)};
    functions->merge(functions_by_index());
    return functions;
  }();
  return *all;
}

// Drops the dispatcher's warning that one kernel overrides another, which is the purpose here.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// The replacement of one function on one device. It is on while on() was called more often than off().
class Replacement {
 public:
  Replacement(DispatchKey key, Register function) : key_(key), function_(function) {}

  void on() {
    if (count_++ > 0) return;
    try {
      install();
    } catch (...) {
      count_ = 0;
      throw;
    }
  }

  void off() {
    if (--count_ > 0) return;
    library_.reset();
    above_.reset();
  }

  int64_t count() const { return count_; }

 private:
  void install() {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    const auto library_of = [](DispatchKey key) {
      return std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    };
    auto library = library_of(key_),
         above = library_of(key_ == DispatchKey::CUDA ? DispatchKey::AutogradCUDA : DispatchKey::AutogradCPU);
    Table table{*library, key_, above.get()};
    function_(table);
    library_ = std::move(library);
    above_ = std::move(above);
  }

  DispatchKey key_;
  Register function_;
  int64_t count_ = 0;
  std::unique_ptr<torch::Library> library_, above_;
};

std::map<std::pair<std::string, std::string>, std::unique_ptr<Replacement>>& all_replacements() {
  static auto* const all = new std::map<std::pair<std::string, std::string>, std::unique_ptr<Replacement>>();
  return *all;
}

using Names = std::vector<std::string>;

// Raises ValueError for what there is not, and for what is named twice.
void check(const std::string& title, const std::optional<Names>& names, const Names& devices) {
  const auto check_once = [&](const Names& given, const char* what) {
    for (size_t i = 0; i < given.size(); ++i)
      TORCH_CHECK_VALUE(std::find(given.begin(), given.begin() + i, given[i]) == given.begin() + i, title, ": ", what, ": '",
                        given[i], "' is named twice");
  };
  if (names) {
    std::string known;
    for (const auto& [name, _] : replaced()) known += (known.empty() ? "'" : ", '") + name + "'";
    for (const std::string& name : *names)
      TORCH_CHECK_VALUE(replaced().count(name), title, ": functions are ", known, ", not '", name, "'");
    check_once(*names, "names");
  }
  for (const std::string& device : devices)
    TORCH_CHECK_VALUE(device == "cuda" || device == "cpu", title, ": devices are 'cuda' and 'cpu', not '", device, "'");
  check_once(devices, "devices");
}

Replacement& replacement(const std::string& title, const std::string& name, const std::string& device) {
  const bool cuda = device == "cuda";
#ifndef GPUREDUCE_WITH_CUDA
  TORCH_CHECK(!cuda, title, ": this library was built without CUDA; it can replace functions on devices=\"cpu\"");
#endif
  std::unique_ptr<Replacement>& one = all_replacements()[{name, device}];
  if (!one) one = std::make_unique<Replacement>(cuda ? DispatchKey::CUDA : DispatchKey::CPU, replaced().at(name));
  return *one;
}

// Switches all given functions on all given devices, or none if one is refused. Without names it switches all functions.
// Returns the replacements that are then on, each as a function and a device.
Names replace(const std::string& title, bool on, const std::optional<Names>& given, const Names& devices) {
  check(title, given, devices);
  Names names = given.value_or(Names());
  if (!given)
    for (const auto& [name, _] : replaced()) names.push_back(name);
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<Replacement*> chosen;
  for (const std::string& name : names) {
    for (const std::string& device : devices) {
      chosen.push_back(&replacement(title, name, device));
      TORCH_CHECK(on || chosen.back()->count() > 0, title, ": off() without on(), on device '", device, "'");
    }
  }
  for (Replacement* one : chosen) on ? one->on() : one->off();
  Names left;
  for (const auto& [where, one] : all_replacements())
    if (one->count() > 0) left.push_back(where.first + " " + where.second);
  return left;
}

// For each function that can be replaced: the aten operators for which there is one of ours for tracing.
std::map<std::string, std::vector<std::string>>& traced() {
  static auto* const names = new std::map<std::string, std::vector<std::string>>();
  return *names;
}

}  // namespace

}  // namespace gpureduce::replacing

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  m.def("_replace(str title, bool on, str[]? names, str[] devices) -> str[]",
        [](const std::string& title, bool on, std::optional<std::vector<std::string>> names, std::vector<std::string> devices) {
          return gpureduce::replacing::replace(title, on, names, devices);
        });
  m.def("_check_replace(str title, str[]? names, str[] devices) -> ()",
        [](const std::string& title, std::optional<std::vector<std::string>> names, std::vector<std::string> devices) {
          gpureduce::replacing::check(title, names, devices);
        });
  for (const auto& [name, function] : gpureduce::replacing::replaced()) {
    gpureduce::replacing::Table table{m};
    function(table);
    gpureduce::replacing::traced()[name] = table.traced;
  }
  m.def("_traced(str name) -> str[]", [](const std::string& name) {
    const auto found = gpureduce::replacing::traced().find(name);
    TORCH_CHECK_VALUE(found != gpureduce::replacing::traced().end(), "_traced(): name: no function '", name, "' is replaced");
    return found->second;
  });
}
