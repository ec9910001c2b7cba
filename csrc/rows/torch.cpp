// softmax, log_softmax, rms_norm and layer_norm with their gradients: functions that keep their input's shape
// (core/numeric/rows.h).
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/Resize.h>

#include "../core/plan/rows.h"
#include "../core/torch/applied.h"
#include "../core/torch/explain.h"
#include "../core/torch/gradient.h"
#include "../core/torch/results.h"
#include "../core/torch/workspace.h"
#include "cpu.h"
#include "torch.h"

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "rows.h"
#endif

#include <algorithm>
#include <limits>
#include <memory>
#include <sstream>
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

// The dims of a row in the order of its memory, slowest first. Dims of size 1 are left out.
static std::vector<int64_t> in_memory_order(const Tensor& x, const DimMask& dims) {
  std::vector<int64_t> order;
  for (int64_t d = 0; d < x.dim(); ++d)
    if (dims[d] && x.size(d) != 1) order.push_back(d);
  const auto before = [&](int64_t a, int64_t b) {
    const int64_t p = x.stride(a), q = x.stride(b);
    return p == 0 ? q != 0 : q != 0 && p > q;
  };
  std::stable_sort(order.begin(), order.end(), before);
  return order;
}

// A call whose rows lie along all dims but `dims`. memory_order: a row's elements are added in the order of its memory, as a
// sum's; otherwise in logical order.
RowsCall make_call(RowFunction function, const Operands& operands, const DimMask& dims, const char* name, bool memory_order) {
  const Tensor& like = operands[kRowX];
  const int64_t rank = like.dim();
  RowsCall call{};
  call.function = function;
  call.wide = is_wide(operands);
  std::vector<int64_t> across, along;
  for (int64_t d = 0; d < rank; ++d) (dims[d] ? across : along).push_back(d);
  if (memory_order) across = in_memory_order(like, dims);
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

#ifdef GPUREDUCE_WITH_CUDA
static void launch(const RowsCall& call, const cuda::RowsPlan& plan, const Tensor& like) {
  const c10::cuda::CUDAGuard guard(like.device());
  const auto stream = c10::cuda::getCurrentCUDAStream(like.device().index());
  C10_CUDA_CHECK(cuda::run_rows(call, plan, cuda::facts(like.device()), stream));
}
#endif

void run(const RowsCall& call, const Tensor& like) {
  if (call.rows == 0 || call.length == 0) return;
  if (Explanation* const e = explanation())
    return e->tell(
        like.device(), cuda::text_of(call), "row", [&](const Device& gpu) { return cuda::plan_rows(call, gpu).str(call); },
        [&] { cpu::run(call); });
#ifdef GPUREDUCE_WITH_CUDA
  if (like.is_cuda()) return launch(call, cuda::plan_rows(call, cuda::facts(like.device())), like);
#endif
  cpu::run(call);
}

// What run() launches for gradients of weights.
static void explain(Explanation& e, const RowsCall* input, const RowWeightsCall& weights, const Tensor& like) {
  const Device* const gpu = e.gpu(like.device());
  const cuda::RowWeightsPlan plan = gpu ? cuda::plan_weights(input, weights, *gpu) : cuda::RowWeightsPlan();
  if (input && !plan.is_one_kernel()) run(*input, like);
  const std::string what = std::string(weights.weight.data ? "weight" : "") +
                           (weights.weight.data && weights.bias.data ? " and " : "") + (weights.bias.data ? "bias" : "");
  const RowsCall& call = plan.is_one_kernel() ? *input : weights.call;
  e.tell(
      like.device(), "gradient of " + what + ": " + cuda::text_of(call), "strip of 64 column",
      [&](const Device&) { return plan.str(weights); }, [&] { cpu::run(weights); });
}

// The gradients of weights, and of the input where `input` is its call.
void run(const RowsCall* input, const RowWeightsCall& weights, const Tensor& like) {
  if (weights.call.length == 0 || weights.call.rows == 0) return;
  if (Explanation* const e = explanation()) return explain(*e, input, weights, like);
#ifdef GPUREDUCE_WITH_CUDA
  if (like.is_cuda()) {
    const Device& facts = cuda::facts(like.device());
    const cuda::RowWeightsPlan plan = cuda::plan_weights(input, weights, facts);
    return cuda::with_workspace(like.device(), plan.workspace_bytes, [&](void* workspace, cudaStream_t stream) {
      return cuda::run_rows(input, weights, plan, workspace, facts, stream);
    });
  }
#endif
  if (input) cpu::run(*input);
  cpu::run(weights);
}

Tensor new_result(const Tensor& like, at::ScalarType dtype) {
  return at::empty_like(like, like.options().dtype(dtype), at::MemoryFormat::Contiguous);
}

// Below so many elements a call is one launch of the kernel that takes anything, which costs less than several launches.
constexpr int64_t kFewElements = 1 << 15;

// Whether the elements of a row are neighbours in memory, in logical order.
static bool are_neighbours(const Tensor& x, const DimMask& dims) {
  int64_t step = 1;
  for (int64_t d = x.dim(); d-- > 0;) {
    if (!dims[d] || x.size(d) == 1) continue;
    if (x.stride(d) != step) return false;
    step *= x.size(d);
  }
  return true;
}

// Whether they are neighbours in a contiguous tensor of this size.
static bool are_last(const Tensor& x, const DimMask& dims) {
  bool kept = false;
  for (int64_t d = x.dim(); d-- > 0;) {
    if (x.size(d) == 1) continue;
    if (dims[d] && kept) return false;
    kept = kept || !dims[d];
  }
  return true;
}

Tensor together(const Tensor& x, const DimMask& dims, const Tensor& like) {
  if (x.numel() < kFewElements || are_neighbours(x, dims) || !are_last(x, dims)) return x;
  const std::vector<int64_t> order = in_memory_order(like, dims);
  return std::is_sorted(order.begin(), order.end()) ? x.contiguous() : x;
}

Tensor room(const Tensor& x, const DimMask& dims, at::ScalarType dtype) {
  const bool as_x = x.numel() >= kFewElements && are_neighbours(x, dims) && !are_last(x, dims);
  return as_x ? at::empty_like(x, x.options().dtype(dtype), at::MemoryFormat::Preserve) : new_result(x, dtype);
}

DimMask one_dim(const Tensor& self, int64_t dim) {
  DimMask mask(self.dim(), false);
  const int64_t d = c10::maybe_wrap_dim(dim, self.dim());
  if (self.dim() > 0) mask[d] = true;
  return mask;
}

bool is_autocast(const Tensor& x) {
  const c10::DeviceType device = x.device().type();
  return (device == at::kCUDA || device == at::kCPU) && at::autocast::is_autocast_enabled(device) &&
         at::autocast::is_eligible(x, device);
}

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

int64_t dims_of_shape(const char* name, const Tensor& input, c10::SymIntArrayRef shape) {
  const int64_t dims = static_cast<int64_t>(shape.size());
  TORCH_CHECK(dims >= 1, name,
              "(): Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
              "normalized_shape = ",
              shape);
  const bool ends = input.dim() >= dims && input.sym_sizes().slice(input.dim() - dims) == shape;
  if (ends) return dims;
  std::ostringstream wanted;
  for (const c10::SymInt& size : shape) wanted << ", " << size;
  TORCH_CHECK(false, name, "(): Given normalized_shape=", shape, ", expected input with shape [*", wanted.str(),
              "], but got input of size ", input.sym_sizes());
}

namespace {

// --- softmax and log_softmax ------------------------------------------------------------------------------------------------

GPUREDUCE_HANDLE(exponent_sum, "_exponent_sum", Tensor(const Tensor&, const Tensor&, OptionalDims, bool))
GPUREDUCE_HANDLE(finish_rows, "_finish_rows",
                 TwoTensors(const Tensor&, const OptionalTensor&, std::string_view, int64_t, double, at::ScalarType))

// Runs a call, unless it had better be computed by parts, and returns false then.
bool run_unless_by_parts(const RowsCall& call, const Tensor& like) {
  const Device* const gpu = call.rows * call.length >= kFewElements ? gpu_of(like.device()) : nullptr;
  if (gpu) {
    const cuda::RowsPlan plan = cuda::plan_rows(call, *gpu);
    if (!plan.is_compiled()) return false;
#ifdef GPUREDUCE_WITH_CUDA
    if (!explanation()) {
      launch(call, plan, like);
      return true;
    }
#endif
  }
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
  const Tensor largest = functional(Operation::_amax).call(x, dim, true, std::nullopt).to(computed);
  const Tensor sum = exponent_sum().call(x, largest, dim, true);
  const auto [m, number] = finish_rows().call(sum, largest, kSoftmax<logarithm>, self.size(dim), 0, computed);
  return apply(logarithm ? Formula::log_softmax : Formula::softmax, x, {m, number}, type);
}

template <bool logarithm>
Tensor softmax_backward_by_parts(const Tensor& grad, const Tensor& result, int64_t dim, at::ScalarType dtype) {
  const at::ScalarType computed = dtype == at::kDouble ? dtype : computed_in({result, grad, {}, {}, {}});
  const Tensor y = computed == at::kDouble ? result.to(computed) : result;  // the formula is computed in its type
  if constexpr (logarithm) {
    const Tensor sum = functional(Operation::sum).call(grad, dim, true, computed);
    return apply(Formula::log_softmax_backward, y, {grad, sum}, dtype);
  } else {
    const Tensor sum = weighted_sum_operator().call(grad, y, dim, true, computed);
    return apply(Formula::softmax_backward, y, {grad, sum}, dtype);
  }
}

template <bool logarithm>
Tensor softmax(const Tensor& self, int64_t dim, OptionalDtype dtype) {
  const at::ScalarType type = softmax_type(kSoftmax<logarithm>, self, dtype);
  const DimMask mask = one_dim(self, dim);
  const Tensor x = together(self, mask, self), result = room(x, mask, type);
  const RowFunction function = logarithm ? RowFunction::log_softmax : RowFunction::softmax;
  const RowsCall call = make_call(function, {x, {}, {}, {}, result}, mask, kSoftmax<logarithm>);
  const bool by_parts = !run_unless_by_parts(call, x);
  return (by_parts ? softmax_by_parts<logarithm>(x, dim, type) : result).contiguous();
}

template <bool logarithm>
Tensor softmax_meta(const Tensor& self, int64_t dim, OptionalDtype dtype) {
  const at::ScalarType type = softmax_type(kSoftmax<logarithm>, self, dtype);
  one_dim(self, dim);
  return new_result(self, type);
}

template <bool logarithm>
Tensor& softmax_out(const Tensor& self, int64_t dim, OptionalDtype dtype, Tensor& out) {
  const at::ScalarType type = softmax_type(kSoftmax<logarithm>, self, dtype);
  check_out_dtype(out, type);
  check_out_place(out, self.device());
  check_out_gradient(kSoftmax<logarithm>, self, out);
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
  const Tensor y = together(result, mask, result), g = together(grad, mask, result), found = room(y, mask, dtype);
  const RowFunction function = logarithm ? RowFunction::log_softmax_backward : RowFunction::softmax_backward;
  const bool by_parts = !run_unless_by_parts(make_call(function, {y, g, {}, {}, found}, mask, name), y);
  return (by_parts ? softmax_backward_by_parts<logarithm>(g, y, dim, dtype) : found).contiguous();
}

template <bool logarithm>
Tensor softmax_backward_meta(const Tensor& grad, const Tensor& result, int64_t dim, at::ScalarType dtype) {
  check_backward(kSoftmaxBackward<logarithm>, grad, result);
  one_dim(result, dim);
  return new_result(result, dtype);
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
    return rounded(g - multiplied(powers, sum(g)), dtype).contiguous();
  } else {
    return rounded((g - sum(g * y)) * y, dtype).contiguous();
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
  const at::ScalarType type = softmax_type(kSoftmax<logarithm>, self, dtype);
  // A logarithm of two bytes has too few digits for its exponential.
  if (logarithm && is_tracked(self) && c10::elementSize(type) == 2)
    return rounded(softmax_operator<logarithm>().call(self, dim, at::kFloat), type);
  return with_derivatives<SoftmaxRule<logarithm>>(
      std::tie(self),
      [&] { return softmax_operator<logarithm>().redispatch(keys & c10::after_autograd_keyset, self, dim, dtype); },
      [&] { return SoftmaxFacts{dim, self.scalar_type()}; }, [&](const Tensor& result) { return std::array{result}; },
      [&](const Tensor& result) {
        const Tensor &tangent = self._fw_grad(/*level=*/0), &primal = self._fw_primal(/*level=*/0);
        if constexpr (!logarithm) return softmax_backward_operator<false>().call(tangent, result, dim, type);
        const at::ScalarType computed = computed_in({primal, tangent, {}, {}, result});
        const Tensor t = tangent.to(computed), part = softmax_operator<false>().call(primal, dim, computed) * t;
        return rounded(t - (part.dim() == 0 ? part : total(part, dim)), type);
      });
}

// As torch's list for CUDA has it: the result is float32 if the call names no dtype, and halves are read as they are.
template <bool logarithm>
Tensor softmax_autocast(const Tensor& self, int64_t dim, OptionalDtype dtype) {
  const bool widens = !dtype && is_autocast(self);
  const c10::impl::ExcludeDispatchKeyGuard below(Key::AutocastCUDA);
  return softmax_operator<logarithm>().call(self, dim, widens ? OptionalDtype(at::kFloat) : dtype);
}

template <bool logarithm>
Tensor softmax_backward_differentiable(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& result, int64_t dim,
                                       at::ScalarType dtype) {
  if (is_tracked(grad, result)) return softmax_backward_composed<logarithm>(grad, result, dim, dtype);
  const at::AutoDispatchBelowADInplaceOrView below;
  return softmax_backward_operator<logarithm>().redispatch(keys & c10::after_autograd_keyset, grad, result, dim, dtype);
}

// --- rms_norm and layer_norm ------------------------------------------------------------------------------------------------

DimMask last_dims(const Tensor& input, int64_t dims) {
  DimMask mask(input.dim(), false);
  std::fill(mask.end() - dims, mask.end(), true);
  return mask;
}

// An rms_norm is a layer_norm without a bias, which keeps r alone per row. Both are written once, by the tensors of a
// layer_norm. Tensors that an rms_norm does not have are undefined.
using Weights = std::array<Tensor, 2>;    // weight and bias
using Normed = std::array<Tensor, 3>;     // y; and per row: mean and r
using Gradients = std::array<Tensor, 3>;  // of input, weight and bias
using Wanted = std::array<bool, 3>;       // which of these

template <bool centered>
constexpr const char* kNorm = centered ? "layer_norm" : "rms_norm";
template <bool centered>
constexpr const char* kNormBackward = centered ? "_layer_norm_backward" : "_rms_norm_backward";

// Calls `op`; or below autograd, with its `keys`.
template <class Op, class... Args>
auto call_of(const Op& op, std::optional<c10::DispatchKeySet> keys, const Args&... args) {
  return keys ? op.redispatch(*keys & c10::after_autograd_keyset, args...) : op.call(args...);
}

template <bool centered>
Normed call_norm(const Tensor& input, int64_t dims, const Weights& w, double eps,
                 std::optional<c10::DispatchKeySet> keys = std::nullopt) {
  if constexpr (centered) {
    auto [y, mean, r] = call_of(layer_norm_operator(), keys, input, dims, optional(w[0]), optional(w[1]), eps);
    return {std::move(y), std::move(mean), std::move(r)};
  } else {
    auto [y, r] = call_of(rms_norm_operator(), keys, input, dims, optional(w[0]), eps);
    return {std::move(y), Tensor(), std::move(r)};
  }
}

template <bool centered>
Gradients call_norm_backward(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor& mean, const Tensor& r,
                             const Weights& w, double eps, Wanted wanted,
                             std::optional<c10::DispatchKeySet> keys = std::nullopt) {
  if constexpr (centered) {
    auto [dx, dw, db] =
        call_of(layer_norm_backward_operator(), keys, grad, input, dims, mean, r, optional(w[0]), optional(w[1]), eps, wanted);
    return {std::move(dx), std::move(dw), std::move(db)};
  } else {
    auto [dx, dw] = call_of(rms_norm_backward_operator(), keys, grad, input, dims, r, optional(w[0]), eps,
                            std::array<bool, 2>{wanted[0], wanted[1]});
    return {std::move(dx), std::move(dw), Tensor()};
  }
}

// A kernel of both, for the operators' schemas. Autograd's kernels have `Keys`.
template <auto kernel, class... Keys>
struct Rms {
  static std::tuple<Tensor, Tensor> forward(Keys... keys, const Tensor& input, int64_t dims, const OptionalTensor& weight,
                                            double eps) {
    const Weights weights{tensor_of(weight)};
    auto [y, mean, r] = kernel(keys..., input, dims, weights, eps);
    return {std::move(y), std::move(r)};
  }
  static std::tuple<Tensor, Tensor> backward(Keys... keys, const Tensor& grad, const Tensor& input, int64_t dims,
                                             const Tensor& r, const OptionalTensor& weight, double eps,
                                             std::array<bool, 2> mask) {
    const Weights weights{tensor_of(weight)};
    const Tensor mean;
    auto [dx, dw, db] = kernel(keys..., grad, input, dims, mean, r, weights, eps, Wanted{mask[0], mask[1], false});
    return {std::move(dx), std::move(dw)};
  }
};
template <auto kernel, class... Keys>
struct Layer {
  static std::tuple<Tensor, Tensor, Tensor> forward(Keys... keys, const Tensor& input, int64_t dims,
                                                    const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
    const Weights weights{tensor_of(weight), tensor_of(bias)};
    auto [y, mean, r] = kernel(keys..., input, dims, weights, eps);
    return {std::move(y), std::move(mean), std::move(r)};
  }
  static std::tuple<Tensor, Tensor, Tensor> backward(Keys... keys, const Tensor& grad, const Tensor& input, int64_t dims,
                                                     const Tensor& mean, const Tensor& r, const OptionalTensor& weight,
                                                     const OptionalTensor& bias, double eps, std::array<bool, 3> mask) {
    const Weights weights{tensor_of(weight), tensor_of(bias)};
    auto [dx, dw, db] = kernel(keys..., grad, input, dims, mean, r, weights, eps, mask);
    return {std::move(dx), std::move(dw), std::move(db)};
  }
};

void check_norm(const char* name, const Tensor& input, int64_t dims, const Weights& weights) {
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
  check(weights[0], "weight");
  check(weights[1], "bias");
}

// A number per row, of the input's dims; the dims of a row have size 1.
Tensor numbers_like(const Tensor& input, int64_t dims, at::ScalarType dtype) {
  c10::SmallVector<c10::SymInt, kCommonRank> sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  std::fill(sizes.end() - dims, sizes.end(), 1);
  return at::empty_symint(sizes, input.options().dtype(dtype));
}

template <bool centered>
Normed norm_meta(const Tensor& input, int64_t dims, const Weights& weights, double) {
  check_norm(kNorm<centered>, input, dims, weights);
  const at::ScalarType computed = computed_in({input, {}, weights[0], weights[1], {}});
  return {new_result(input, input.scalar_type()), centered ? numbers_like(input, dims, computed) : Tensor(),
          numbers_like(input, dims, computed)};
}

template <bool centered>
Normed norm(const Tensor& input, int64_t dims, const Weights& weights, double eps) {
  Normed results = norm_meta<centered>(input, dims, weights, eps);
  const auto& [y, mean, r] = results;
  const DimMask across = last_dims(input, dims);
  const Tensor x = together(input, across, input);
  RowsCall call = make_call(centered ? RowFunction::layer_norm : RowFunction::rms_norm, {x, {}, weights[0], weights[1], y},
                            across, kNorm<centered>);
  call.eps = eps;
  call.mean = centered ? mean.data_ptr() : nullptr;
  call.r = r.data_ptr();
  if (call.length == 0) {  // no kernel runs; these are torch's
    if (centered) mean.zero_();
    r.fill_(std::numeric_limits<double>::quiet_NaN());
    return results;
  }
  run(call, input);
  return results;
}

at::ScalarType dtype_of_weight(const Tensor& input, const Tensor& weight) {
  return weight.defined() ? weight.scalar_type() : input.scalar_type();
}

template <bool centered>
void check_norm_backward(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor& mean, const Tensor& r,
                         const Weights& weights) {
  const char* const name = kNormBackward<centered>;
  check_backward(name, grad, input);
  check_norm(name, input, dims, weights);
  c10::SymInt rows = 1;
  for (int64_t d = 0; d < input.dim() - dims; ++d) rows = rows * input.sym_size(d);
  const auto check = [&](const Tensor& x, const char* argument) {
    TORCH_CHECK(x.device() == input.device(), name, "(): ", argument, ": expected to be on ", input.device(), ", but is on ",
                x.device());
    real_dtype(x, name);
    TORCH_SYM_CHECK(x.sym_numel().sym_eq(rows), name, "(): ", argument, ": expected a number for each of ", rows,
                    " rows, but got ", x.sym_numel());
  };
  if (centered) check(mean, "mean");
  check(r, "r");
}

template <bool centered>
Gradients norm_backward(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor& mean, const Tensor& r,
                        const Weights& weights, double, Wanted mask) {
  const char* const name = kNormBackward<centered>;
  const auto& [weight, bias] = weights;
  check_norm_backward<centered>(grad, input, dims, mean, r, weights);
  Gradients found;
  const DimMask across = last_dims(input, dims);
  const Tensor x = together(input, across, input), g = together(grad, across, input);
  const at::ScalarType computed = computed_in({input, grad, weight, bias, r});
  const Tensor own_mean = centered ? plain(mean.to(computed)) : Tensor(), own_r = plain(r.to(computed));
  const auto set_numbers = [&](RowsCall& call) {
    call.wide = computed == at::kDouble;
    call.mean = centered ? own_mean.data_ptr() : nullptr;
    call.r = own_r.data_ptr();
  };
  std::unique_ptr<RowsCall> own;
  if (mask[0]) {
    found[0] = new_result(input, input.scalar_type());
    own = std::make_unique<RowsCall>(make_call(centered ? RowFunction::layer_norm_backward : RowFunction::rms_norm_backward,
                                               {x, g, weight, {}, found[0]}, across, name));
    set_numbers(*own);
  }
  if (mask[1] || mask[2]) {
    const auto call = std::make_unique<RowWeightsCall>();
    call->call = make_call(RowFunction::rms_norm_backward, {x, g, {}, {}, {}}, across, name, false);
    set_numbers(call->call);
    for (int i : {1, 2}) {
      if (!mask[i]) continue;
      const at::ScalarType wanted = dtype_of_weight(input, i == 1 ? weight : bias);
      const at::ScalarType dtype = at::isFloatingType(wanted) ? wanted : computed;
      const auto sizes = input.sizes().slice(input.dim() - dims);
      found[i] = call->call.rows == 0 ? at::zeros(sizes, input.options().dtype(dtype))
                                      : at::empty(sizes, input.options().dtype(dtype));
      (i == 1 ? call->weight : call->bias) = RowOperand{static_cast<char*>(found[i].data_ptr()), real_dtype(found[i], name)};
    }
    run(own.get(), *call, input);
    for (int i : {1, 2})
      if (mask[i]) found[i] = rounded(found[i], dtype_of_weight(input, i == 1 ? weight : bias));
  } else if (own) {
    run(*own, input);
  }
  return found;
}

Tensor weight_like(const Tensor& input, int64_t dims, const Tensor& weight) {
  const at::ScalarType dtype = dtype_of_weight(input, weight);
  return at::empty_symint(input.sym_sizes().slice(input.dim() - dims), input.options().dtype(dtype));
}

template <bool centered>
Gradients norm_backward_meta(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor& mean, const Tensor& r,
                             const Weights& weights, double, Wanted mask) {
  check_norm_backward<centered>(grad, input, dims, mean, r, weights);
  return {mask[0] ? new_result(input, input.scalar_type()) : Tensor(),
          mask[1] ? weight_like(input, dims, weights[0]) : Tensor(), mask[2] ? weight_like(input, dims, weights[1]) : Tensor()};
}

// The gradients by operators that torch can differentiate again; what a row's numbers are is computed again, too.
template <bool centered>
Gradients norm_backward_composed(const Tensor& grad, const Tensor& input, int64_t dims, const Tensor& given_r,
                                 const Weights& weights, double eps, Wanted mask) {
  const auto& [weight, bias] = weights;
  const at::ScalarType computed = computed_in({input, grad, weight, bias, given_r});
  std::vector<int64_t> across, along;
  c10::SymInt length = 1;
  for (int64_t d = 0; d < input.dim(); ++d) {
    (d < input.dim() - dims ? along : across).push_back(d);
    if (d >= input.dim() - dims) length = length * input.sym_size(d);
  }
  const Tensor x = input.to(computed);
  // Several dims of a row are added in the order of the input's memory, so the gradient must lie there alike.
  const Tensor g = dims > 1 ? multiplied(at::ones_like(x).detach(), grad.to(computed)) : grad.to(computed);
  const auto over = [&](const Tensor& sums) { return apply(Formula::quotient, sums, {{}, {}, {}, length}, computed); };
  Tensor h, r;
  if constexpr (centered) {
    const Tensor center = over(total(x, across)).detach(), difference = x - center;  // the results do not depend on it
    const Tensor sum = total(difference, across), more = over(sum);
    const Tensor variance = over((total(difference * difference, across) - sum * more).clamp_min(0));
    r = apply(Formula::inverse_root, variance, {number_like(eps, variance)}, computed);
    h = (x - (center + more)) * r;
  } else {
    static const auto powers = functional(Operation::_powsum_2);
    const Tensor mean_square = over(powers.call(x, at::IntArrayRef(across), true, std::nullopt));
    r = apply(Formula::inverse_root, mean_square, {number_like(eps, mean_square)}, computed);
    h = x * r;
  }
  Gradients found;
  if (mask[0]) {
    const Tensor d = weight.defined() ? multiplied(g, weight.to(computed)) : g;
    const Tensor y = centered ? d - over(total(d, across)) : d;
    found[0] = rounded((y - multiplied(h, over(total(h * d, across)))) * r, input.scalar_type()).contiguous();
  }
  const auto over_rows = [&](const Tensor& x, const Tensor& like) {
    if (along.empty()) return rounded(x, dtype_of_weight(input, like));
    const Tensor logical = x.contiguous();  // rows are added in logical order
    const Tensor sums = functional(Operation::sum).call(logical, at::IntArrayRef(along), false, std::nullopt);
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

template <bool centered>
struct NormRule : RuleOf<NormFacts> {
  static constexpr std::array<bool, 5> kKept = {false, false, false, false, false};  // input, mean, r, weight, bias

  static std::string name() { return centered ? "gpureduce_layer_norm_backward" : "gpureduce_rms_norm_backward"; }

  static variable_list gradients(variable_list grads, const NormFacts& facts, const std::array<Tensor, 5>& kept) {
    if (!grads[0].defined()) return variable_list(3);
    auto [dx, dw, db] = call_norm_backward<centered>(grads[0], kept[0], facts.dims, kept[1], kept[2], Weights{kept[3], kept[4]},
                                                     facts.eps, {true, kept[3].defined(), kept[4].defined()});
    return {dx, dw, db};
  }
};

// The change of a norm's result y = h * w + b by its arguments' changes. The derivative of h by x is symmetric, so that the
// backward pass without a weight gives it.
template <bool centered>
Tensor norm_tangent(const Tensor& input, int64_t dims, const Tensor& mean, const Tensor& r, const Weights& weights,
                    double eps) {
  const auto& [weight, bias] = weights;
  const at::ScalarType computed = r.scalar_type();
  const auto tangent_of = [](const Tensor& x) { return x.defined() ? x._fw_grad(/*level=*/0) : Tensor(); };
  const auto primal_of = [](const Tensor& x) { return x.defined() ? x._fw_primal(/*level=*/0) : Tensor(); };
  const Tensor t = tangent_of(input), x = primal_of(input), w = primal_of(weight);
  Tensor change = at::zeros_like(x, x.options().dtype(computed));
  if (t.defined()) {
    const Tensor wide = x.to(computed);
    change = call_norm_backward<centered>(t.to(computed), wide, dims, mean, r, {}, eps, {true, false, false})[0];
    if (w.defined()) change = multiplied(change, w.to(computed));
  }
  if (const Tensor tw = tangent_of(weight); tw.defined()) {
    const Tensor h = centered ? (x.to(computed) - mean) * r : x.to(computed) * r;
    change = change + multiplied(h, tw.to(computed));
  }
  if (const Tensor tb = tangent_of(bias); tb.defined()) change = change + tb.to(computed);
  return rounded(change, x.scalar_type());
}

template <bool centered>
Normed norm_differentiable(c10::DispatchKeySet keys, const Tensor& input, int64_t dims, const Weights& weights, double eps) {
  return with_derivatives<NormRule<centered>>(
      std::tie(input, weights[0], weights[1]), [&] { return call_norm<centered>(input, dims, weights, eps, keys); },
      [&] { return NormFacts{dims, eps}; },
      [&](const Normed& results) { return std::array{input, results[1], results[2], weights[0], weights[1]}; },
      [&](const Normed& results) { return norm_tangent<centered>(input, dims, results[1], results[2], weights, eps); });
}

template <bool centered>
Gradients norm_backward_differentiable(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& input, int64_t dims,
                                       const Tensor& mean, const Tensor& r, const Weights& weights, double eps, Wanted mask) {
  if (is_tracked(grad, input, weights[0])) return norm_backward_composed<centered>(grad, input, dims, r, weights, eps, mask);
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_norm_backward<centered>(grad, input, dims, mean, r, weights, eps, mask, keys);
}

// --- the functions -------------------------------------------------------------------------------------------------------

Tensor rms_norm_of(const Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight, std::optional<double> eps) {
  const int64_t dims = dims_of_shape("rms_norm", input, shape);
  return std::get<0>(rms_norm_operator().call(input, dims, weight, eps.value_or(epsilon_of(input.scalar_type()))));
}

Tensor layer_norm_of(const Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight, const OptionalTensor& bias,
                     double eps) {
  const int64_t dims = dims_of_shape("layer_norm", input, shape);
  const Tensor x = input.is_cuda() && is_autocast(input) ? input.to(at::kFloat) : input;  // torch's list for CUDA
  return std::get<0>(layer_norm_operator().call(x, dims, weight, bias, eps));
}

// --- vmap ----------------------------------------------------------------------------------------------------------------

template <bool logarithm>
Tensor softmax_batched(const Tensor& self, int64_t dim, OptionalDtype dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(kSoftmax<logarithm>);
  const auto [value, batched] = in_front(self, level);
  if (!batched) return softmax_operator<logarithm>().call(value, dim, dtype);
  const int64_t rank = value.dim() - 1;
  const int64_t own = c10::maybe_wrap_dim(dim, rank);
  const Tensor wide = rank == 0 ? value.unsqueeze(1) : value;  // a batch of scalars
  Tensor found = softmax_operator<logarithm>().call(wide, own + 1, dtype);
  return with_batch(rank == 0 ? found.squeeze(1) : found, 0, level);
}

template <bool logarithm>
Tensor softmax_backward_batched(const Tensor& grad, const Tensor& result, int64_t dim, at::ScalarType dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(kSoftmaxBackward<logarithm>);
  auto [g, g_batched] = in_front(grad, level);
  auto [y, y_batched] = in_front(result, level);
  if (!g_batched && !y_batched) return softmax_backward_operator<logarithm>().call(g, y, dim, dtype);
  if (!g_batched) g = repeated(g, y.sym_size(0));
  if (!y_batched) y = repeated(y, g.sym_size(0));
  const int64_t rank = y.dim() - 1, own = c10::maybe_wrap_dim(dim, rank);
  if (rank == 0) {
    g = g.unsqueeze(1);
    y = y.unsqueeze(1);
  }
  Tensor found = softmax_backward_operator<logarithm>().call(g, y, own + 1, dtype);
  return with_batch(rank == 0 ? found.squeeze(1) : found, 0, level);
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
  if (weight.value.defined()) y = multiplied(y, spread(weight));
  if (bias.value.defined()) y = y + spread(bias);
  return rounded(y, dtype);
}

template <bool centered>
Normed norm_batched(const Tensor& input, int64_t dims, const Weights& weights, double eps) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(kNorm<centered>);
  auto x = in_front(input, level);
  const auto w = in_front(weights[0], level), b = in_front(weights[1], level);
  if (!x.batched && !w.batched && !b.batched) return call_norm<centered>(x.value, dims, {w.value, b.value}, eps);
  if (!x.batched) x.value = repeated(x.value, (w.batched ? w : b).value.sym_size(0));
  Normed found;
  if (!w.batched && !b.batched) {
    found = call_norm<centered>(x.value, dims, {w.value, b.value}, eps);
  } else {
    found = call_norm<centered>(x.value.to(computed_in({x.value, {}, w.value, b.value, {}})), dims, {}, eps);
    found[0] = weighted(found[0], w, b, x.value.scalar_type());
  }
  for (Tensor& each : found)
    if (each.defined()) each = with_batch(std::move(each), 0, level);
  return found;
}

template <bool logarithm>
void define_softmax(torch::Library& m) {
  const std::string name = kSoftmax<logarithm>, arguments = "(Tensor self, int dim, *, ScalarType? dtype=None";
  define_operator<softmax<logarithm>, softmax_meta<logarithm>, softmax_differentiable<logarithm>, softmax_batched<logarithm>>(
      m, name + arguments + ") -> Tensor");
  define_operator<softmax_backward<logarithm>, softmax_backward_meta<logarithm>, softmax_backward_differentiable<logarithm>,
                  softmax_backward_batched<logarithm>>(
      m, kSoftmaxBackward<logarithm> + std::string("(Tensor grad, Tensor result, int dim, ScalarType dtype) -> Tensor"));
  put(m, Key::AutocastCUDA, name, &softmax_autocast<logarithm>);
  define_composite(m, name + ".out" + arguments + ", Tensor(a!) out) -> Tensor(a!)", &softmax_out<logarithm>);
}

}  // namespace

}  // namespace gpureduce::rows

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  using namespace gpureduce::rows;
  using Keys = c10::DispatchKeySet;
  define_softmax<false>(m);
  define_softmax<true>(m);
  define_operator<Rms<&norm<false>>::forward, Rms<&norm_meta<false>>::forward, Rms<&norm_differentiable<false>, Keys>::forward,
                  Rms<&norm_batched<false>>::forward>(
      m, "_rms_norm(Tensor input, int dims, Tensor? weight, float eps) -> (Tensor, Tensor)");
  define_operator<Rms<&norm_backward<false>>::backward, Rms<&norm_backward_meta<false>>::backward,
                  Rms<&norm_backward_differentiable<false>, Keys>::backward>(
      m,
      "_rms_norm_backward(Tensor grad, Tensor input, int dims, Tensor r, Tensor? weight, float eps, bool[2] mask) -> "
      "(Tensor, Tensor)");
  define_operator<Layer<&norm<true>>::forward, Layer<&norm_meta<true>>::forward,
                  Layer<&norm_differentiable<true>, Keys>::forward, Layer<&norm_batched<true>>::forward>(
      m, "_layer_norm(Tensor input, int dims, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)");
  define_operator<Layer<&norm_backward<true>>::backward, Layer<&norm_backward_meta<true>>::backward,
                  Layer<&norm_backward_differentiable<true>, Keys>::backward>(
      m,
      "_layer_norm_backward(Tensor grad, Tensor input, int dims, Tensor mean, Tensor r, Tensor? weight, Tensor? bias, "
      "float eps, bool[3] mask) -> (Tensor, Tensor, Tensor)");
  define_composite(m, "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
                   &rms_norm_of);
  define_composite(
      m,
      "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) -> Tensor",
      &layer_norm_of);
}
