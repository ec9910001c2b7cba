// exact_sum, exact_mean and exact_nansum: the correctly rounded results of sum, mean and nansum. And the states of exact sums,
// for torch_reduce.exact. An integer or bool result is the ordinary operator's, which rounds nothing.
#include "../cpu/exact.h"

#include <ATen/ATen.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../cuda/exact.h"
#endif

#include "../numeric/exact.h"
#include "batch.h"
#include "plumbing.h"

namespace gpureduce::exact {

namespace {

using at::Tensor;

constexpr const char* kName = "exact_sum";  // in errors about problems, which all of them share

// --- the problem and its backends -----------------------------------------------------------------------------------------

// The sum of real elements over dims. Without `out` the results are new and contiguous, or the call is only checked.
ExactSum make_sum(const Tensor& self, const DimMask& reduce, const Tensor& out, bool keepdim) {
  Reduction r{};
  r.in = dtype_of(self.scalar_type(), "an input of dtype", kName);
  InputDims dims(self.dim());
  for (int64_t d = 0; d < self.dim(); ++d) dims[d] = {self.size(d), self.stride(d), 0, false, 0};
  complete(r, dims, reduce, out, keepdim, self.device(), "exact_sum: the input has");
  ExactSum sum{};
  sum.problem = r.problem;
  sum.input = self.const_data_ptr();
  sum.output = r.output;
  sum.in = r.in;
  sum.negate = self.is_neg();
  sum.divisor = 1;
  return sum;
}

void run(const ExactSum& sum, at::Device device) {
#ifdef GPUREDUCE_WITH_CUDA
  if (device.is_cuda()) {
    const c10::cuda::CUDAGuard guard(device);
    const Device& facts = cuda::facts(device);
    const int64_t bytes = cuda::exact_workspace(sum, facts);
    const Tensor workspace = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
    C10_CUDA_CHECK(cuda::run_exact(sum, workspace.mutable_data_ptr(), facts, stream));
    return;
  }
#endif
  cpu::run_exact(sum);
}

// The input as backends take it: a lazily negated integer wraps, which they do not know.
Tensor taken(const Tensor& self) { return self.is_floating_point() ? self : self.resolve_neg(); }

// Writes the results of real elements to a floating `out`. `mean`: divides by their number.
void sum_reals(const Tensor& given, const DimMask& reduce, bool keepdim, const Tensor& out, bool mean, bool nan_is_zero) {
  const Tensor self = taken(given);
  ExactSum sum = make_sum(self, reduce, out, keepdim);
  if (sum.problem.outputs == 0) return;
  if (sum.problem.length == 0) {
    out.fill_(mean ? std::numeric_limits<double>::quiet_NaN() : 0.0);
    return;
  }
  sum.out = dtype_of(out.scalar_type(), "a result of dtype", kName);
  sum.nan_is_zero = nan_is_zero;
  if (mean) sum.divisor = static_cast<uint64_t>(sum.problem.length);
  run(sum, self.device());
}

// The same for real and complex elements and results.
void sum_numbers(const Tensor& self, const DimMask& reduce, bool keepdim, const Tensor& out, bool mean, bool nan_is_zero) {
  const auto sum = [&](const Tensor& x, const Tensor& to) { sum_reals(x, reduce, keepdim, to, mean, nan_is_zero); };
  if (!out.is_complex()) {
    if (self.is_complex()) {
      TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
    }
    return sum(self.is_complex() ? at::real(self) : self, out);
  }
  if (self.is_complex() && !self.is_conj() && !self.is_neg()) {  // reads the input once
    DimMask parts = reduce;
    parts.push_back(false);
    return sum_reals(at::view_as_real(self), parts, keepdim, at::view_as_real(out), mean, nan_is_zero);
  }
  sum(self.is_complex() ? at::real(self) : self, at::real(out));
  if (self.is_complex()) sum(at::imag(self), at::imag(out));
  else at::imag(out).zero_();
}

// --- the operators --------------------------------------------------------------------------------------------------------

template <class Int>
struct Call {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  DimMask reduce;
};

template <Operation op>
struct ExactReduction {
  static const char* name() { return operator_name<op, true>(); }
  static constexpr const char* kArguments = "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None";
  static constexpr bool kOutHasDtype = true, kHasGradient = true;
  static constexpr bool autocasts(c10::DeviceType device) {
    return device == at::kCUDA ? info(op).autocasts : info(op).autocasts_on_cpu();
  }
  using Function = gpureduce::Functional;

  template <class Int>
  static Call<Int> check(const Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype, const Tensor* out) {
    Call<Int> call;
    call.reduce = reduced_dims(dim, self.dim());
    call.dtype = out ? out_type(op, self, dtype, *out) : result_type(op, self.scalar_type(), dtype);
    if (out) check_out_place(*out, self.device());
    dtype_of(self.scalar_type(), "an input of dtype", name_of(op));
    dtype_of(call.dtype, out ? "an out tensor of dtype" : "a result of dtype", name_of(op));
    call.sizes = result_sizes(sizes_of<Int>(self), call.reduce, keepdim);
    return call;
  }

  static void refuse(const Call<int64_t>& call, const Tensor& self, OptionalDims, bool keepdim, OptionalDtype) {
    make_reduction(op, self, call.reduce, call.dtype, {}, keepdim);
  }

  static void compute(const Call<int64_t>& call, const Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype,
                      const Tensor& out, const Tuning&) {
    if (at::isIntegralType(call.dtype, /*includeBool=*/true)) {
      Tensor result = out;
      out_variant<op>().call(self, dim, keepdim, call.dtype, result);
    } else {
      sum_numbers(self, call.reduce, keepdim, out, info(op).finish == Finish::quotient, info(op).map == Map::number);
    }
  }

  static Tensor batched(const Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
    return batched_reduction(name(), std::array{self}, dim, keepdim,
                             [&](const std::array<Tensor, 1>& input, OptionalDims dims, bool keeps) {
                               return functional<op, true>().call(input[0], dims, keeps, dtype);
                             });
  }
};

// --- states ---------------------------------------------------------------------------------------------------------------

int64_t state_size(bool wide) { return wide ? kStateSize<WideRange> : kStateSize<NarrowRange>; }

Tensor partial_meta(const Tensor& self, OptionalDims dim, bool keepdim, bool) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "exact.partial(): complex numbers are not supported: use torch.view_as_real");
  const DType in = dtype_of(self.scalar_type(), "an input of dtype", "exact.partial");
  auto sizes = result_sizes(self.sym_sizes(), reduced_dims(dim, self.dim()), keepdim);
  sizes.push_back(state_size(in == DType::Double));
  return at::empty_symint(sizes, at::TensorOptions().dtype(at::kLong).device(self.device()));
}

// The states of sums over dims, in a last dim.
Tensor partial(const Tensor& given, OptionalDims dim, bool keepdim, bool nan_is_zero) {
  const Tensor self = taken(given), states = partial_meta(self, dim, keepdim, nan_is_zero);
  ExactSum sum = make_sum(self, reduced_dims(dim, self.dim()), {}, keepdim);
  if (sum.problem.outputs == 0) return states;
  if (sum.problem.length == 0) return states.zero_();
  sum.output = states.mutable_data_ptr();
  sum.out = DType::Long;
  sum.states = true;
  sum.nan_is_zero = nan_is_zero;
  run(sum, self.device());
  return states;
}

Tensor partial_batched(const Tensor& self, OptionalDims dim, bool keepdim, bool nan_is_zero) {
  static const auto handle = find<Tensor(const Tensor&, OptionalDims, bool, bool)>("_exact_partial");
  return batched_reduction("exact.partial", std::array{self}, dim, keepdim,
                           [&](const std::array<Tensor, 1>& input, OptionalDims dims, bool keeps) {
                             return handle.call(input[0], dims, keeps, nan_is_zero);
                           });
}

Tensor round_meta(const Tensor& state, at::ScalarType dtype, int64_t divisor) {
  TORCH_CHECK(state.scalar_type() == at::kLong, "exact.round(): a state is of int64, not ", state.scalar_type());
  const auto has = [&](bool wide) { return state.dim() > 0 && state.sym_size(-1) == state_size(wide); };
  TORCH_CHECK(has(false) || has(true), "exact.round(): the last dim of a state has the size ", state_size(false), " or ",
              state_size(true), ", but the sizes are ", state.sym_sizes());
  TORCH_CHECK(at::isFloatingType(dtype), "exact.round(): dtype must be floating, but is ", dtype);
  dtype_of(dtype, "a result of dtype", "exact.round");
  TORCH_CHECK_VALUE(divisor > 0, "exact.round(): count must be positive, but is ", divisor);
  return at::empty_symint(state.sym_sizes().slice(0, state.dim() - 1), state.options().dtype(dtype));
}

// The numbers that are nearest to the states' sums, over `divisor`.
Tensor round(const Tensor& given, at::ScalarType dtype, int64_t divisor) {
  const Tensor result = round_meta(given, dtype, divisor), state = given.resolve_neg().contiguous();
  if (result.numel() == 0) return result;
  ExactRounding rounding{};
  rounding.states = state.const_data_ptr<int64_t>();
  rounding.range = state.size(-1) == state_size(true) ? ExactRange::wide : ExactRange::narrow;
  rounding.output = result.mutable_data_ptr();
  rounding.out = dtype_of(dtype, "a result of dtype");
  rounding.count = result.numel();
  rounding.divisor = static_cast<uint64_t>(divisor);
#ifdef GPUREDUCE_WITH_CUDA
  if (state.is_cuda()) {
    const c10::cuda::CUDAGuard guard(state.device());
    C10_CUDA_CHECK(cuda::round_exact(rounding, c10::cuda::getCurrentCUDAStream(state.device().index())));
    return result;
  }
#endif
  cpu::round_exact(rounding);
  return result;
}

Tensor round_batched(const Tensor& state, at::ScalarType dtype, int64_t divisor) {
  static const auto handle = find<Tensor(const Tensor&, at::ScalarType, int64_t)>("_exact_round");
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level("exact.round");
  const auto [value, batched] = in_front(state, level);
  const Tensor result = handle.call(value, dtype, divisor);
  return batched ? with_batch(result, 0, level) : result;
}

}  // namespace

}  // namespace gpureduce::exact

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  for_each_exact_operation([&](auto op) {
    using Row = exact::ExactReduction<op>;
    define_reduction_with_out<Row>(m);
    put(m, Key::FuncTorchBatched, Row::name(), &Row::batched);
  });
  define_operator<exact::partial, exact::partial_meta, nullptr, exact::partial_batched>(
      m, "_exact_partial(Tensor self, int[1]? dim=None, bool keepdim=False, bool nan_is_zero=False) -> Tensor");
  define_operator<exact::round, exact::round_meta, nullptr, exact::round_batched>(
      m, "_exact_round(Tensor state, ScalarType dtype, int divisor=1) -> Tensor");
  put_fallthrough(m, "_exact_partial");
  for (const char* each : {"_exact_partial", "_exact_round"}) refuse_layouts(m, each);
}
