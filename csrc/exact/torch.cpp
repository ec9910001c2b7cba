// The results of exact_sum, exact_mean, exact_nansum and the operators of sums of squares and their roots, which are defined in
// ops.cpp: correctly rounded. And the states of exact sums, for torch_reduce.exact. An integer or bool result is the ordinary
// operator's, which rounds nothing.
#include "torch.h"

#include <ATen/ATen.h>

#include "cpu.h"

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "exact.h"
#endif

#include "../core/numeric/exact.h"
#include "../core/plan/exact.h"
#include "../core/torch/batch.h"
#include "../core/torch/explain.h"
#include "../core/torch/plumbing.h"
#include "../core/torch/workspace.h"
#include "../pairs/torch_weighted.h"

namespace gpureduce::exact {

namespace {

using at::Tensor;

constexpr const char* kName = "sum";  // in errors about problems, as of the ordinary operators

// --- the problem and its backends -----------------------------------------------------------------------------------------

// What is added: the elements of `self`, or their products with the elements of `weight`. Both are broadcast to each other,
// and real.
struct Given {
  Tensor self, weight;
  bool nan_is_zero = false;

  // Backends do not know that a lazily negated integer wraps.
  Given(const Tensor& x, const Tensor& w = {}, bool nan_is_zero = false)
      : self(taken(x)), weight(w.defined() ? taken(w) : w), nan_is_zero(nan_is_zero) {
    if (weight.defined() && weight.sizes() != self.sizes()) {
      const auto sizes = weighted::common_sizes(self.sizes(), weight.sizes());
      self = self.expand(sizes);
      weight = weight.expand(sizes);
    }
  }

  // True if each product is a square.
  bool squares() const {
    return weight.defined() && weight.const_data_ptr() == self.const_data_ptr() && weight.strides() == self.strides() &&
           weight.scalar_type() == self.scalar_type() && weight.is_neg() == self.is_neg();
  }

 private:
  static Tensor taken(const Tensor& x) { return x.is_floating_point() ? x : x.resolve_neg(); }
};

// The sum over dims. Without `out` the results are new and contiguous, or the call is only checked.
ExactSum make_sum(const Given& given, const DimMask& reduce, const Tensor& out, bool keepdim) {
  const Tensor& self = given.self;
  const bool products = given.weight.defined() && !given.squares();
  Reduction r{};
  r.in = dtype_of(self.scalar_type(), "an input of dtype", kName);
  InputDims dims(self.dim());
  for (int64_t d = 0; d < self.dim(); ++d)
    dims[d] = {self.size(d), self.stride(d), 0, false, products ? given.weight.stride(d) : 0};
  complete(r, dims, reduce, out, keepdim, self.device(),
           products ? "weighted_sum: input and weight have" : "sum: the input has");
  ExactSum sum{};
  sum.problem = r.problem;
  sum.input = self.const_data_ptr();
  sum.output = r.output;
  sum.in = r.in;
  sum.negate = self.is_neg();
  sum.nan_is_zero = given.nan_is_zero;
  sum.divisor = 1;
  if (given.weight.defined()) sum.addends = products ? ExactAddends::products : ExactAddends::squares;
  if (products) {
    sum.second = given.weight.const_data_ptr();
    sum.second_dtype = dtype_of(given.weight.scalar_type(), "a weight of dtype", kName);
    sum.second_negate = given.weight.is_neg();
  }
  return sum;
}

void run(const ExactSum& sum, at::Device device) {
  if (Explanation* const e = explanation())
    return e->tell(
        device, cuda::text_of(sum), "task", [&](const Device& gpu) { return cuda::plan_exact(sum, gpu).str(sum); },
        [&] { cpu::run_exact(sum); });
#ifdef GPUREDUCE_WITH_CUDA
  if (device.is_cuda()) {
    const Device& facts = cuda::facts(device);
    const cuda::ExactPlan plan = cuda::plan_exact(sum, facts);
    return cuda::with_workspace(device, plan.workspace_bytes, [&](void* workspace, cudaStream_t stream) {
      return cuda::run_exact(sum, plan, workspace, facts, stream);
    });
  }
#endif
  cpu::run_exact(sum);
}

// Writes the results to a real, floating `out`: the sums, their quotients by the number of addends, or their square roots.
void sum_reals(const Given& given, const DimMask& reduce, bool keepdim, const Tensor& out, Finish finish = Finish::none) {
  ExactSum sum = make_sum(given, reduce, out, keepdim);
  if (sum.problem.outputs == 0) return;
  if (sum.problem.length == 0) {
    out.fill_(finish == Finish::quotient ? std::numeric_limits<double>::quiet_NaN() : 0.0);
    return;
  }
  sum.out = dtype_of(out.scalar_type(), "a result of dtype", kName);
  if (finish == Finish::quotient) sum.divisor = static_cast<uint64_t>(sum.problem.length);
  sum.root = finish == Finish::square_root;
  run(sum, given.self.device());
}

// The same for real and complex elements and results.
void sum_numbers(const Tensor& self, const DimMask& reduce, bool keepdim, const Tensor& out, Finish finish, bool nan_is_zero) {
  warn_if_imaginary_is_lost(self.scalar_type(), out.scalar_type());
  by_parts(self, out, [&](const Tensor& x, const Tensor& to) {
    DimMask dims = reduce;
    dims.resize(x.dim(), false);  // the parts are kept
    sum_reals({x, {}, nan_is_zero}, dims, keepdim, to, finish);
  });
}

// Writes the sums of squared magnitudes, or their roots. A complex number adds the squares of both parts.
void sum_squares(const Tensor& self, const DimMask& reduce, bool keepdim, const Tensor& out, Finish finish) {
  Tensor x = self.is_conj() ? self.conj() : self;  // of lazy views as they are stored, since no sign matters
  if (x.is_neg()) x = x._neg_view();
  if (!x.is_complex()) return sum_reals({x, x}, reduce, keepdim, out, finish);
  DimMask parts = reduce;
  parts.push_back(true);
  x = at::view_as_real(x);
  sum_reals({x, x}, parts, keepdim, keepdim ? out.unsqueeze(-1) : out, finish);
}

// --- states ---------------------------------------------------------------------------------------------------------------

constexpr const char* kPartial = "exact.partial";

int64_t state_size(ExactRange range) {
  switch (range) {
    case ExactRange::narrow: return kStateSize<NarrowRange>;
    case ExactRange::wide: return kStateSize<WideRange>;
    default: return kStateSize<ProductRange>;
  }
}

DType partial_dtype(const Tensor& x, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(!x.is_complex(), kPartial, "(): complex numbers are not supported: use torch.view_as_real");
  return dtype_of(x.scalar_type(), what, kPartial);
}

Tensor partial_meta(const Tensor& self, OptionalDims dim, bool keepdim, bool nan_is_zero, const OptionalTensor& weight) {
  const DType in = partial_dtype(self, "an input of dtype");
  c10::SymDimVector common(self.sym_sizes().begin(), self.sym_sizes().end());
  ExactRange range = exact_range(ExactAddends::elements, in, in);
  if (weight) {
    TORCH_CHECK_VALUE(!nan_is_zero, kPartial, "(): nan_is_zero is of elements, and cannot be given beside a weight");
    weighted::check_devices("exact.partial()", self, *weight);
    range = exact_range(ExactAddends::products, in, partial_dtype(*weight, "a weight of dtype"));
    common = weighted::common_sizes(self.sym_sizes(), weight->sym_sizes());
  }
  const DimMask reduce = reduced_dims(dim, static_cast<int64_t>(common.size()));
  auto sizes = result_sizes(c10::SymIntArrayRef(common), reduce, keepdim);
  sizes.push_back(state_size(range));
  return at::empty_symint(sizes, at::TensorOptions().dtype(at::kLong).device(self.device()));
}

// The states of sums over dims, in a last dim.
Tensor partial(const Tensor& self, OptionalDims dim, bool keepdim, bool nan_is_zero, const OptionalTensor& weight) {
  const Tensor states = partial_meta(self, dim, keepdim, nan_is_zero, weight);
  const Given given(self, tensor_of(weight), nan_is_zero);
  ExactSum sum = make_sum(given, reduced_dims(dim, given.self.dim()), {}, keepdim);
  if (sum.problem.outputs == 0) return states;
  if (sum.problem.length == 0) return states.zero_();
  sum.output = states.mutable_data_ptr();
  sum.out = DType::Long;
  sum.states = true;
  run(sum, self.device());
  return states;
}

Tensor partial_batched(const Tensor& self, OptionalDims dim, bool keepdim, bool nan_is_zero, const OptionalTensor& weight) {
  static const auto handle = find<Tensor(const Tensor&, OptionalDims, bool, bool, const OptionalTensor&)>("_exact_partial");
  const auto call = [&](const auto& inputs, OptionalDims dims, bool keeps) {
    return handle.call(inputs[0], dims, keeps, nan_is_zero,
                       inputs.size() > 1 ? optional(inputs[inputs.size() - 1]) : std::nullopt);
  };
  if (weight) return batched_reduction(kPartial, std::array{self, *weight}, dim, keepdim, call);
  return batched_reduction(kPartial, std::array{self}, dim, keepdim, call);
}

Tensor round_meta(const Tensor& state, at::ScalarType dtype, int64_t divisor, bool root) {
  TORCH_CHECK(state.scalar_type() == at::kLong, "exact.round(): a state is of int64, not ", state.scalar_type());
  const auto has = [&](ExactRange range) { return state.dim() > 0 && state.sym_size(-1) == state_size(range); };
  TORCH_CHECK(has(ExactRange::narrow) || has(ExactRange::wide) || has(ExactRange::products),
              "exact.round(): the last dim of a state has the size ", state_size(ExactRange::narrow), ", ",
              state_size(ExactRange::wide), " or ", state_size(ExactRange::products), ", but the sizes are ",
              state.sym_sizes());
  TORCH_CHECK(at::isFloatingType(dtype), "exact.round(): dtype must be floating, but is ", dtype);
  dtype_of(dtype, "a result of dtype", "exact.round");
  TORCH_CHECK_VALUE(divisor > 0, "exact.round(): count must be positive, but is ", divisor);
  TORCH_CHECK_VALUE(!root || divisor == 1, "exact.round(): count cannot be given beside root, but is ", divisor);
  return at::empty_symint(state.sym_sizes().slice(0, state.dim() - 1), state.options().dtype(dtype));
}

// The numbers that are nearest to the states' sums over `divisor`, or to their square roots.
Tensor round(const Tensor& given, at::ScalarType dtype, int64_t divisor, bool root) {
  const Tensor result = round_meta(given, dtype, divisor, root), state = given.resolve_neg().contiguous();
  if (result.numel() == 0) return result;
  ExactRounding rounding{};
  rounding.states = state.const_data_ptr<int64_t>();
  for (const ExactRange range : {ExactRange::narrow, ExactRange::wide, ExactRange::products})
    if (state.size(-1) == state_size(range)) rounding.range = range;
  rounding.output = result.mutable_data_ptr();
  rounding.out = dtype_of(dtype, "a result of dtype");
  rounding.count = result.numel();
  rounding.divisor = static_cast<uint64_t>(divisor);
  rounding.root = root;
  if (Explanation* const e = explanation()) {
    e->tell(
        state.device(), "rounding of " + std::to_string(rounding.count) + " exact states", "state",
        [&](const Device&) {
          return "kernel exact_round: block: " + std::to_string(cuda::kExactAnyThreads) + " threads; grid " +
                 std::to_string(cuda::plan_rounding(rounding.count).x);
        },
        [&] { cpu::round_exact(rounding); });
    return result;
  }
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

Tensor round_batched(const Tensor& state, at::ScalarType dtype, int64_t divisor, bool root) {
  static const auto handle = find<Tensor(const Tensor&, at::ScalarType, int64_t, bool)>("_exact_round");
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level("exact.round");
  const auto [value, batched] = in_front(state, level);
  const Tensor result = handle.call(value, dtype, divisor, root);
  return batched ? with_batch(result, 0, level) : result;
}

}  // namespace

void compute(Operation op, at::ScalarType dtype, const Tensor& self, OptionalDims dim, const DimMask& reduce, bool keepdim,
             const Tensor& out) {
  const OperationInfo row = info(op);
  if (at::isIntegralType(dtype, /*includeBool=*/true)) {
    Tensor result = out;
    out_variant(op).call(self, dim, keepdim, dtype, result);
  } else if (row.map == Map::square) {
    sum_squares(self, reduce, keepdim, out, row.finish);
  } else {
    sum_numbers(self, reduce, keepdim, out, row.finish, row.map == Map::number);
  }
}

void sum_products(const Tensor& self, const Tensor& weight, const DimMask& reduce, bool keepdim, const Tensor& out) {
  sum_reals({self, weight}, reduce, keepdim, out);
}

}  // namespace gpureduce::exact

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define_operator<exact::partial, exact::partial_meta, nullptr, exact::partial_batched>(
      m,
      "_exact_partial(Tensor self, int[1]? dim=None, bool keepdim=False, bool nan_is_zero=False, Tensor? weight=None) -> "
      "Tensor");
  define_operator<exact::round, exact::round_meta, nullptr, exact::round_batched>(
      m, "_exact_round(Tensor state, ScalarType dtype, int divisor=1, bool root=False) -> Tensor");
  put_fallthrough(m, "_exact_partial");
  for (const char* each : {"_exact_partial", "_exact_round"}) refuse_layouts(m, each);
}
