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

#include "replace.h"
#include "rows.h"

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
template <Operation op, DispatchKey key, class Otherwise>
at::Tensor reduce(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype, Otherwise otherwise) {
  if (!is_taken<op>(self, dtype)) return otherwise();
  return call_ours<key>(functional<op>(), self, dim, keepdim, dtype);
}
template <Operation op, DispatchKey key, class Otherwise>
at::Tensor& reduce_out(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype, at::Tensor& out,
                       Otherwise otherwise) {
  if (!is_taken_into<op>(self, dtype, out)) return otherwise();
  constexpr bool kSum = info(op).has_dtype();
  return out_variant<op>().redispatch(c10::DispatchKeySet(key), self, dim, keepdim,
                                      kSum ? OptionalDtype(out.scalar_type()) : dtype, out);
}

// aten's kernels, by their arguments. All of them are plain functions, so removing them from the dispatcher's stack frees
// nothing that a call in another thread may still need.
template <Operation op, class Torch, DispatchKey key>
struct Kernels {
  // dim, keepdim, dtype
  static at::Tensor full(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
    return reduce<op, key>(self, dim, keepdim, dtype, [&] { return Torch::template call<key>(self, dim, keepdim, dtype); });
  }
  static at::Tensor& full_out(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype, at::Tensor& out) {
    return reduce_out<op, key>(self, dim, keepdim, dtype, out,
                               [&]() -> at::Tensor& { return Torch::template out<key>(out, self, dim, keepdim, dtype); });
  }
  // dims, keepdim; if dims may be None, an empty list reduces nothing
  template <class Dims>
  static at::Tensor plain(const at::Tensor& self, Dims dim, bool keepdim) {
    const auto otherwise = [&] { return Torch::template call<key>(self, dim, keepdim); };
    return is_nothing(dim) ? otherwise() : reduce<op, key>(self, dim, keepdim, {}, otherwise);
  }
  template <class Dims>
  static at::Tensor& plain_out(const at::Tensor& self, Dims dim, bool keepdim, at::Tensor& out) {
    const auto otherwise = [&]() -> at::Tensor& { return Torch::template out<key>(out, self, dim, keepdim); };
    return is_nothing(dim) ? otherwise() : reduce_out<op, key>(self, dim, keepdim, {}, out, otherwise);
  }
  static bool is_nothing(at::IntArrayRef) { return false; }
  static bool is_nothing(OptionalDims dim) { return dim.has_value() && dim->empty(); }
  // one dim, keepdim; some have dtype
  template <class... Dtype>
  static at::Tensor one(const at::Tensor& self, int64_t dim, bool keepdim, Dtype... dtype) {
    return reduce<op, key>(self, dim, keepdim, {dtype...},
                           [&] { return Torch::template call<key>(self, dim, keepdim, dtype...); });
  }
  template <class... Dtype>
  static at::Tensor& one_out(const at::Tensor& self, int64_t dim, bool keepdim, Dtype... dtype, at::Tensor& out) {
    return reduce_out<op, key>(self, dim, keepdim, {dtype...}, out,
                               [&]() -> at::Tensor& { return Torch::template out<key>(out, self, dim, keepdim, dtype...); });
  }
  // all; some have dtype
  template <class... Dtype>
  static at::Tensor all(const at::Tensor& self, Dtype... dtype) {
    return reduce<op, key>(self, std::nullopt, false, {dtype...}, [&] { return Torch::template call<key>(self, dtype...); });
  }
  static at::Tensor& all_out(const at::Tensor& self, at::Tensor& out) {
    return reduce_out<op, key>(self, std::nullopt, false, {}, out,
                               [&]() -> at::Tensor& { return Torch::template out<key>(out, self); });
  }
};

// The norms that we have; other orders are left to torch.
template <DispatchKey key>
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
  static at::Tensor full(const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
    const auto otherwise = [&] { return torch_linalg_vector_norm::call<key>(self, ord, dim, keepdim, dtype); };
    if (is_empty(self)) return otherwise();
    return with_order(ord, [&](auto op) { return reduce<op.value, key>(self, dim, keepdim, dtype, otherwise); }, otherwise);
  }
  static at::Tensor& full_out(const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim,
                              OptionalDtype dtype, at::Tensor& out) {
    const auto otherwise = [&]() -> std::reference_wrapper<at::Tensor> {
      return torch_linalg_vector_norm::out<key>(out, self, ord, dim, keepdim, dtype);
    };
    if (self.numel() == 0) return otherwise();
    const auto known = [&](auto op) -> std::reference_wrapper<at::Tensor> {
      return reduce_out<op.value, key>(self, dim, keepdim, dtype, out, [&]() -> at::Tensor& { return otherwise(); });
    };
    return with_order(ord, known, otherwise);
  }
};

template <DispatchKey key>
struct Count {
  static constexpr Operation op = Operation::_count_nonzero;
  static at::Tensor dims(const at::Tensor& self, at::IntArrayRef dim) {
    return reduce<op, key>(self, dim, false, {}, [&] { return torch_count_nonzero::call<key>(self, dim); });
  }
};

// torch has one kernel for all devices, which refuses an empty list of dims.
template <DispatchKey key>
struct Logarithm {
  static constexpr Operation op = Operation::_logsumexp;
  static at::Tensor dims(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
    const auto otherwise = [&] {
      return key == kTraced ? at::Tensor() : at::compositeexplicitautograd::logsumexp(self, dim, keepdim);
    };
    return dim.empty() ? otherwise() : reduce<op, key>(self, dim, keepdim, {}, otherwise);
  }
};

// Variances have an operator with two results. Calls without degrees of freedom are left to torch, which warns.
template <DispatchKey key>
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
  static Pair both(const at::Tensor& self, OptionalDims dim, const Correction& correction, bool root, bool keepdim) {
    return call_ours<key>(var_mean_operator(), self, dim, number(correction), root, keepdim, OptionalDtype());
  }
  template <class Torch, bool root>
  static Pair pair(const at::Tensor& self, OptionalDims dim, const Correction& correction, bool keepdim) {
    if (!is_taken(self, dim, correction)) return Torch::template call<key>(self, dim, correction, keepdim);
    return both(self, dim, correction, root, keepdim);
  }
  template <class Torch, bool root>
  static at::Tensor one(const at::Tensor& self, OptionalDims dim, const Correction& correction, bool keepdim) {
    if (!is_taken(self, dim, correction)) return Torch::template call<key>(self, dim, correction, keepdim);
    return std::get<0>(both(self, dim, correction, root, keepdim));
  }
  template <class Torch, bool root>
  static at::Tensor& one_out(const at::Tensor& self, OptionalDims dim, const Correction& correction, bool keepdim,
                             at::Tensor& out) {
    if (!is_taken(self, dim, correction) || !is_plain_out(out, self, self.scalar_type()))
      return Torch::template out<key>(out, self, dim, correction, keepdim);
    return write(out, std::get<0>(both(self, dim, correction, root, keepdim)));
  }
};

template <DispatchKey key>
at::Tensor dot(const at::Tensor& self, const at::Tensor& other) {
  const at::ScalarType type = self.scalar_type();
  const bool taken = is_common(type) && at::isFloatingType(type) && type == other.scalar_type() && self.dim() == 1 &&
                     other.dim() == 1 && TORCH_GUARD_OR_TRUE(self.sym_size(0).sym_eq(other.sym_size(0))) &&
                     self.device() == other.device() && !has_names(self, 0) && !has_names(other, 0);
  if (!taken) return torch_dot::call<key>(self, other);
  return call_ours<key>(weighted_sum_operator(), self, other, OptionalDims(), false, OptionalDtype(type));
}

// True for tensors of a dtype that ours takes, with elements, and without names.
bool is_float_row(const at::Tensor& x) {
  return is_common(x.scalar_type()) && at::isFloatingType(x.scalar_type()) && x.dim() > 0 && !is_empty(x) && !has_names(x, 0);
}

// A function in torch's forms: with new results, and with one or two that are given. Function::is_taken has torch's arguments,
// and says whether ours takes them; ours() calls it; all results have one dtype, result().
template <class Function, DispatchKey key, class = decltype(Function::is_taken)>
struct Forms;
template <class Function, DispatchKey key, class... Rest>
struct Forms<Function, key, bool(const at::Tensor&, Rest...)> {
  using Torch = typename Function::Torch;

  static auto made(const at::Tensor& first, Rest... rest) {
    if (!Function::is_taken(first, rest...)) return Torch::template call<key>(first, rest...);
    return Function::template ours<key>(first, rest...);
  }
  static at::Tensor& into(const at::Tensor& first, Rest... rest, at::Tensor& out) {
    if (!is_taken_into(first, rest..., out)) return Torch::template out<key>(out, first, rest...);
    return write(out, Function::template ours<key>(first, rest...));
  }
  static std::tuple<at::Tensor&, at::Tensor&> into_both(const at::Tensor& first, Rest... rest, at::Tensor& out,
                                                        at::Tensor& second_out) {
    if (!is_taken_into(first, rest..., out) || !is_plain_out(second_out, first, out.scalar_type()))
      return Torch::template out<key>(out, second_out, first, rest...);
    const auto [found, second] = Function::template ours<key>(first, rest...);
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
  template <DispatchKey key, class... Args>
  static auto ours(const Args&... args) {
    return call_ours<key>(handle(), args...);
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
    return is_softmax_taken(self, dim) && (!to_float || c10::elementSize(self.scalar_type()) == 2);
  }
  static at::ScalarType result(const at::Tensor& self, int64_t, bool to_float) {
    return to_float ? at::kFloat : self.scalar_type();
  }
  template <DispatchKey key>
  static at::Tensor ours(const at::Tensor& self, int64_t dim, bool to_float) {
    return call_ours<key>(rows::softmax_operator<logarithm>(), self, dim, OptionalDtype(result(self, dim, to_float)));
  }
};

template <bool logarithm>
struct SoftmaxBackward : Alike<rows::softmax_backward_operator<logarithm>> {
  using Torch = std::conditional_t<logarithm, torch_log_softmax_backward, torch_softmax_backward>;

  static bool is_taken(const at::Tensor& grad, const at::Tensor& result, int64_t dim, at::ScalarType dtype) {
    return is_softmax_taken(result, dim) && is_float_row(grad) && grad.sym_sizes() == result.sym_sizes() &&
           grad.device() == result.device() && is_common(dtype) && at::isFloatingType(dtype);
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

template <DispatchKey key>
struct LayerNorm {
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

  static Three forward(const at::Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                       const OptionalTensor& bias, double eps) {
    const int64_t dims = norm_dims(input, shape, weight, bias);
    if (dims == 0) return torch_layer_norm::call<key>(input, C10_AS_INTARRAYREF_SLOW(shape), weight, bias, eps);
    return call_ours<key>(rows::layer_norm_operator(), input, dims, weight, bias, eps);
  }
  static Three backward(const at::Tensor& grad, const at::Tensor& input, c10::SymIntArrayRef shape, const at::Tensor& mean,
                        const at::Tensor& r, const OptionalTensor& weight, const OptionalTensor& bias,
                        std::array<bool, 3> mask) {
    const int64_t dims = norm_dims(input, shape, weight, bias);
    if (dims == 0 || grad.sym_sizes() != input.sym_sizes() || !is_float_row(grad))
      return torch_layer_norm_backward::call<key>(grad, input, C10_AS_INTARRAYREF_SLOW(shape), mean, r, weight, bias, mask);
    return call_ours<key>(rows::layer_norm_backward_operator(), grad, input, dims, mean, r, weight, bias, 0.0, mask);
  }
};

// torch's kernels for CUDA.
template <DispatchKey key>
struct RmsNorm {
  using Two = std::tuple<at::Tensor, at::Tensor>;

  static Two forward(const at::Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight, std::optional<double> eps) {
    const int64_t dims = norm_dims(input, c10::fromIntArrayRefSlow(shape), weight, {});
    if (dims == 0) return theirs(input, shape, weight, eps);
    return call_ours<key>(rows::rms_norm_operator(), input, dims, weight, eps.value_or(rows::epsilon_of(input.scalar_type())));
  }
  static Two backward(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef shape, const at::Tensor& r,
                      const OptionalTensor& weight, std::array<bool, 2> mask) {
    const int64_t dims = norm_dims(input, c10::fromIntArrayRefSlow(shape), weight, {});
    if (dims == 0 || grad.sizes() != input.sizes() || !is_float_row(grad)) return theirs(grad, input, shape, r, weight, mask);
    return call_ours<key>(rows::rms_norm_backward_operator(), grad, input, dims, r, weight, 0.0, mask);
  }

 private:
  static Two theirs(const at::Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight, std::optional<double> eps) {
#ifdef GPUREDUCE_WITH_CUDA
    if constexpr (key == DispatchKey::CUDA) return at::cuda::_fused_rms_norm(input, shape, weight, eps);
#endif
    return {};
  }
  static Two theirs(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef shape, const at::Tensor& r,
                    const OptionalTensor& weight, std::array<bool, 2> mask) {
#ifdef GPUREDUCE_WITH_CUDA
    if constexpr (key == DispatchKey::CUDA) return at::cuda::_fused_rms_norm_backward(grad, input, shape, r, weight, mask);
#endif
    return {};
  }
};

// On the CPU torch composes the function of others above autograd. So this lies there, too, and has our own derivatives.
at::Tensor composed_rms_norm(const at::Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                             std::optional<double> eps) {
  const int64_t dims = norm_dims(input, shape, weight, {});
  if (dims == 0) return at::compositeimplicitautograd::rms_norm_symint(input, shape, weight, eps);
  return std::get<0>(rows::rms_norm_operator().call(input, dims, weight, eps.value_or(rows::epsilon_of(input.scalar_type()))));
}

// Losses of indices of classes. torch has kernels for (C) and (N, C), and others for (N, C, H, W), which all shapes become.
template <bool images>
struct NllLoss : Alike<rows::nll_loss_operator>, OfFirstDtype {
  using Torch = std::conditional_t<images, torch_nll_loss2d, torch_nll_loss>;

  static bool is_taken(const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight, int64_t reduction,
                       c10::SymInt) {
    const int64_t rank = self.dim(), classes = rank == 1 ? 0 : 1;
    if (!is_float_row(self) || (images ? rank != 4 : rank > 2) || target.dim() != rank - 1) return false;
    if ((target.scalar_type() != at::kLong && target.scalar_type() != at::kByte) || target.device() != self.device() ||
        has_names(target, 0) || reduction < at::Reduction::None || reduction >= at::Reduction::END)
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
        !is_like(total_weight) || total_weight.dim() != 0)
      return false;
    if (reduction != at::Reduction::None) return grad.dim() == 0;
    return grad.sym_sizes() == target.sym_sizes();
  }
};

template <DispatchKey key>
void register_sum(Table<key>& m) {
  using K = Kernels<Operation::sum, torch_sum, key>;
  m.impl("sum.dim_IntList", TORCH_FN(K::full));
  m.impl("sum.IntList_out", TORCH_FN(K::full_out));
}
template <DispatchKey key>
void register_mean(Table<key>& m) {
  using K = Kernels<Operation::mean, torch_mean, key>;
  m.impl("mean.dim", TORCH_FN(K::full));
  m.impl("mean.out", TORCH_FN(K::full_out));
}
template <DispatchKey key>
void register_nansum(Table<key>& m) {
  using K = Kernels<Operation::nansum, torch_nansum, key>;
  m.impl("nansum", TORCH_FN(K::full));
  m.impl("nansum.out", TORCH_FN(K::full_out));
}
template <DispatchKey key>
void register_prod(Table<key>& m) {
  using K = Kernels<Operation::prod, torch_prod, key>;
  m.impl("prod", TORCH_FN(K::template all<OptionalDtype>));
  m.impl("prod.dim_int", TORCH_FN(K::template one<OptionalDtype>));
  m.impl("prod.int_out", TORCH_FN(K::template one_out<OptionalDtype>));
}
template <DispatchKey key>
void register_amax(Table<key>& m) {
  using K = Kernels<Operation::_amax, torch_amax, key>;
  m.impl("amax", TORCH_FN(K::template plain<at::IntArrayRef>));
  m.impl("amax.out", TORCH_FN(K::template plain_out<at::IntArrayRef>));
}
template <DispatchKey key>
void register_amin(Table<key>& m) {
  using K = Kernels<Operation::_amin, torch_amin, key>;
  m.impl("amin", TORCH_FN(K::template plain<at::IntArrayRef>));
  m.impl("amin.out", TORCH_FN(K::template plain_out<at::IntArrayRef>));
}
template <Operation op, class Torch, DispatchKey key>
void register_truth(Table<key>& m, const std::string& name) {
  using K = Kernels<op, Torch, key>;
  m.impl(name, TORCH_FN(K::template all<>));
  m.impl(name + ".all_out", TORCH_FN(K::all_out));
  m.impl(name + ".dim", TORCH_FN(K::template one<>));
  m.impl(name + ".out", TORCH_FN(K::template one_out<>));
  m.impl(name + ".dims", TORCH_FN(K::template plain<OptionalDims>));
  m.impl(name + ".dims_out", TORCH_FN(K::template plain_out<OptionalDims>));
}
template <DispatchKey key>
void register_any(Table<key>& m) {
  register_truth<Operation::_any, torch_any, key>(m, "any");
}
template <DispatchKey key>
void register_all(Table<key>& m) {
  register_truth<Operation::_all, torch_all, key>(m, "all");
}
template <DispatchKey key>
void register_count_nonzero(Table<key>& m) {
  m.impl("count_nonzero.dim_IntList", TORCH_FN(Count<key>::dims));
}
template <DispatchKey key>
void register_vector_norm(Table<key>& m) {
  m.impl("linalg_vector_norm", TORCH_FN(Norm<key>::full));
  m.impl("linalg_vector_norm.out", TORCH_FN(Norm<key>::full_out));
}

template <DispatchKey key>
void register_logsumexp(Table<key>& m) {
  m.impl("logsumexp", TORCH_FN(Logarithm<key>::dims));
}
template <DispatchKey key>
void register_var(Table<key>& m) {
  m.impl("var.correction", TORCH_FN((Variance<key>::template one<torch_var, false>)));
  m.impl("var.correction_out", TORCH_FN((Variance<key>::template one_out<torch_var, false>)));
}
template <DispatchKey key>
void register_std(Table<key>& m) {
  m.impl("std.correction", TORCH_FN((Variance<key>::template one<torch_std, true>)));
  m.impl("std.correction_out", TORCH_FN((Variance<key>::template one_out<torch_std, true>)));
}
template <DispatchKey key>
void register_var_mean(Table<key>& m) {
  m.impl("var_mean.correction", TORCH_FN((Variance<key>::template pair<torch_var_mean, false>)));
}
template <DispatchKey key>
void register_std_mean(Table<key>& m) {
  m.impl("std_mean.correction", TORCH_FN((Variance<key>::template pair<torch_std_mean, true>)));
}
template <DispatchKey key>
void register_dot(Table<key>& m) {
  m.impl("dot", TORCH_FN(dot<key>));
}

template <class Function, DispatchKey key>
void register_forms(Table<key>& m, const std::string& name, const char* out) {
  m.impl(name, TORCH_FN((Forms<Function, key>::made)));
  m.impl(name + out, TORCH_FN((Forms<Function, key>::into)));
}
template <DispatchKey key>
void register_softmax(Table<key>& m) {
  register_forms<Softmax<false>>(m, "_softmax", ".out");
  register_forms<SoftmaxBackward<false>>(m, "_softmax_backward_data", ".out");
}
template <DispatchKey key>
void register_log_softmax(Table<key>& m) {
  register_forms<Softmax<true>>(m, "_log_softmax", ".out");
  register_forms<SoftmaxBackward<true>>(m, "_log_softmax_backward_data", ".out");
}
template <DispatchKey key>
void register_layer_norm(Table<key>& m) {
  m.impl("native_layer_norm", TORCH_FN(LayerNorm<key>::forward));
  m.impl("native_layer_norm_backward", TORCH_FN(LayerNorm<key>::backward));
}
template <DispatchKey key>
void register_rms_norm(Table<key>& m) {
  if constexpr (key == DispatchKey::CPU) {
    m.impl_composed("rms_norm", TORCH_FN(composed_rms_norm));
  } else {
    m.impl("_fused_rms_norm", TORCH_FN(RmsNorm<key>::forward));
    m.impl("_fused_rms_norm_backward", TORCH_FN(RmsNorm<key>::backward));
  }
}
template <bool images, DispatchKey key>
void register_nll_loss_of(Table<key>& m, const std::string& name) {
  m.impl(name + "_forward", TORCH_FN((Forms<NllLoss<images>, key>::made)));
  m.impl(name + "_forward.output", TORCH_FN((Forms<NllLoss<images>, key>::into_both)));
  register_forms<NllLossBackward<images>>(m, name + "_backward", ".grad_input");
}
template <DispatchKey key>
void register_nll_loss(Table<key>& m) {
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
  Replacement(DispatchKey key, Install kernels) : key_(key), kernels_(kernels) {}

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
    kernels_(*library, above.get());
    library_ = std::move(library);
    above_ = std::move(above);
  }

  DispatchKey key_;
  Install kernels_;
  int64_t count_ = 0;
  std::unique_ptr<torch::Library> library_, above_;
};

std::map<std::pair<std::string, std::string>, std::unique_ptr<Replacement>>& all_replacements() {
  static auto* const all = new std::map<std::pair<std::string, std::string>, std::unique_ptr<Replacement>>();
  return *all;
}

Replacement& replacement(const std::string& title, const std::string& name, const std::string& device) {
  const auto row = replaced().find(name);
  if (row == replaced().end()) {
    std::string names;
    for (const auto& [known, _] : replaced()) names += (names.empty() ? "'" : ", '") + known + "'";
    TORCH_CHECK_VALUE(false, title, ": functions are ", names, ", not '", name, "'");
  }
  TORCH_CHECK_VALUE(device == "cuda" || device == "cpu", title, ": devices are 'cuda' and 'cpu', not '", device, "'");
  const bool cuda = device == "cuda";
  TORCH_CHECK(!cuda || row->second.on_cuda, title, ": this library was built without CUDA; it can replace functions on ",
              "devices=\"cpu\"");
  std::unique_ptr<Replacement>& one = all_replacements()[{name, device}];
  if (!one)
    one = std::make_unique<Replacement>(cuda ? DispatchKey::CUDA : DispatchKey::CPU,
                                        cuda ? row->second.on_cuda : row->second.on_cpu);
  return *one;
}

// Switches all given functions on all given devices, or none if one is refused. Without names it switches all functions.
// Returns the replacements that are then on, each as a function and a device.
std::vector<std::string> replace(const std::string& title, bool on, std::optional<std::vector<std::string>> given,
                                 const std::vector<std::string>& devices) {
  std::vector<std::string> names = given.value_or(std::vector<std::string>());
  if (!given)
    for (const auto& [name, _] : replaced()) names.push_back(name);
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<Replacement*> chosen;
  for (const std::string& name : names) {
    for (const std::string& device : devices) {
      chosen.push_back(&replacement(title, name, device));
      for (size_t i = 0; i + 1 < chosen.size(); ++i)
        TORCH_CHECK_VALUE(chosen[i] != chosen.back(), title, ": ",
                          names.size() > 1 ? "functions or devices name" : "devices names", " '",
                          names.size() > 1 ? name + "' on '" + device : device, "' twice");
      TORCH_CHECK(on || chosen.back()->count() > 0, title, ": off() without on(), on device '", device, "'");
    }
  }
  for (Replacement* one : chosen) on ? one->on() : one->off();
  std::vector<std::string> left;
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
          return gpureduce::replacing::replace(title, on, std::move(names), devices);
        });
  for (const auto& [name, row] : gpureduce::replacing::replaced())
    gpureduce::replacing::traced()[name] = row.traced(m, nullptr);
  m.def("_traced(str name) -> str[]", [](const std::string& name) { return gpureduce::replacing::traced().at(name); });
}
