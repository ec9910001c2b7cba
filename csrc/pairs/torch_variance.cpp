// var_mean, var and std: one operator with two results, and the functions that call it.
#include <ATen/ATen.h>

#include "../core/torch/applied.h"
#include "../core/torch/batch.h"
#include "../core/torch/explain.h"
#include "../core/torch/gradient.h"
#include "../core/torch/plumbing.h"
#include "cpu_variance.h"

namespace gpureduce::variance {

namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

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

template <class Int>
struct Call {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  DimMask reduce;
};

struct VarMean {
  static const char* name() { return "_var_mean"; }
  static constexpr const char* kArguments =
      "(Tensor self, int[1]? dim, float correction, bool root, bool keepdim, *, ScalarType? dtype=None";
  using Function = Pair(const Tensor&, OptionalDims, double, bool, bool, OptionalDtype);

  template <class Int>
  static Call<Int> check(const Tensor& self, OptionalDims dim, double, bool, bool keepdim, OptionalDtype dtype, const Tensor*) {
    Call<Int> call;
    call.dtype = result_type(self, dtype);
    call.reduce = reduced_dims(dim, self.dim());
    call.sizes = result_sizes(sizes_of<Int>(self), call.reduce, keepdim);
    return call;
  }

  static void compute(const Call<int64_t>& call, const Tensor& self, OptionalDims, double correction, bool root, bool,
                      OptionalDtype, const Pair& results, const Tuning& tuning) {
    const auto& [variance, mean] = results;
    const Reduction r = make_reduction(self, call.reduce, call.dtype, variance, mean, correction, root);
    if (static_cast<double>(r.problem.outputs == 0 ? 0 : r.problem.length) <= correction)
      TORCH_WARN(root ? "std" : "var", "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction ",
                 "factor (input numel divided by output numel).");
    if (r.problem.outputs == 0) return;
    if (r.problem.length == 0) {
      variance.fill_(std::numeric_limits<double>::quiet_NaN());
      mean.fill_(std::numeric_limits<double>::quiet_NaN());
      return;
    }
    run_on(self.device(), r, tuning, cpu::run_variance);
  }
};

// A call that is only planned.
Reduction planned(const Tensor& self, OptionalDims dim, bool, OptionalDtype dtype) {
  return make_reduction(self, reduced_dims(dim, self.dim()), result_type(self, dtype), {}, {}, 1, false);
}

// --- gradients ------------------------------------------------------------------------------------------------------------

// The facts that a backward pass needs besides the input, the mean, and the standard deviation if that is the result.
struct VarianceFacts {
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
Tensor derivative(const Tensor& self, const VarianceFacts& saved, const Tensor& deviation, const Tensor& mean,
                  const Tensor& grad, const Tensor& share, at::ScalarType dtype) {
  const Tensor part = saved.root ? apply(Formula::ratio, grad, {{}, deviation}, at::kDouble) : 2 * grad.to(at::kDouble);
  const Tensor factor = apply(Formula::quotient, part, {{}, {}, {}, count_of(self, saved.dims), saved.correction}, at::kDouble);
  return apply(Formula::deviation, self, {factor, mean, share}, dtype);
}

struct VarianceRule : RuleOf<VarianceFacts> {
  static constexpr std::array<bool, 3> kKept = {false, true, true};  // the input, the deviation if needed, the mean
  static constexpr size_t kResults = 2;

  static std::string name() { return "gpureduce_var_mean_backward"; }

  static variable_list gradients(variable_list grads, const VarianceFacts& saved, const std::array<Tensor, 3>& kept) {
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

// The tangents of the results, in float64, from the input's tangent.
std::array<Tensor, 2> tangents(const Tensor& self, const VarianceFacts& saved, const Pair& results) {
  const Tensor &tangent = self._fw_grad(/*level=*/0), &primal = self._fw_primal(/*level=*/0), wide = tangent.to(at::kDouble);
  const auto spread = [&](const Tensor& x) { return with_reduced_dims(x, saved.dims, saved.keepdim); };
  const Tensor variance = spread(std::get<0>(results)), mean = spread(std::get<1>(results));
  const Tensor change = derivative(primal, saved, variance, mean, at::ones_like(variance).detach(), {}, at::kDouble) * wide;
  if (saved.dims.empty()) return {change, wide};
  const at::IntArrayRef dims(saved.dims);
  if (saved.root && self.sym_numel() == 0)  // the deviation of nothing is NaN, and its tangent, too
    return {std::get<0>(results).detach(), functional(Operation::mean).call(tangent, dims, saved.keepdim, at::kDouble)};
  return {functional(Operation::sum).call(change, dims, saved.keepdim, std::nullopt),
          functional(Operation::mean).call(tangent, dims, saved.keepdim, at::kDouble)};
}

Pair reduce_differentiable(c10::DispatchKeySet keys, const Tensor& self, OptionalDims dim, double correction, bool root,
                           bool keepdim, OptionalDtype dtype) {
  if (is_tracked(self)) {  // gradients need more digits than smaller dtypes have
    if (const at::ScalarType result = result_type(self, dtype); result != at::kDouble) {
      const auto [variance, mean] = var_mean_operator().call(self, dim, correction, root, keepdim, at::kDouble);
      return {rounded(variance, result), rounded(mean, result)};
    }
  }
  const auto saved = [&] { return VarianceFacts{dims_of(reduced_dims(dim, self.dim())), correction, root, keepdim}; };
  return with_derivatives<VarianceRule>(
      std::tie(self),
      [&] {
        return var_mean_operator().redispatch(keys & c10::after_autograd_keyset, self, dim, correction, root, keepdim, dtype);
      },
      saved,
      [&](const Pair& results) {
        return std::array<Tensor, 3>{self, root ? std::get<0>(results) : Tensor(), std::get<1>(results)};
      },
      [&](const Pair& results) { return tangents(self, saved(), results); });
}

Pair reduce_batched(const Tensor& self, OptionalDims dim, double correction, bool root, bool keepdim, OptionalDtype dtype) {
  return batched_reduction("var_mean", std::array{self}, dim, keepdim,
                           [&](const std::array<Tensor, 1>& input, OptionalDims dims, bool keeps) {
                             return var_mean_operator().call(input[0], dims, correction, root, keeps, dtype);
                           });
}

// --- the functions --------------------------------------------------------------------------------------------------------

double correction_of(const std::optional<at::Scalar>& correction) {
  TORCH_CHECK(!correction || !correction->isComplex(), "correction: expected a real number");
  return correction ? correction->toDouble() : 1;
}

Pair var_mean(const Tensor& self, OptionalDims dim, const std::optional<at::Scalar>& correction, bool keepdim) {
  return var_mean_operator().call(self, dim, correction_of(correction), false, keepdim, std::nullopt);
}

template <bool root>
Tensor var(const Tensor& self, OptionalDims dim, const std::optional<at::Scalar>& correction, bool keepdim) {
  return std::get<0>(var_mean_operator().call(self, dim, correction_of(correction), root, keepdim, std::nullopt));
}

template <bool root>
Tensor& var_out(const Tensor& self, OptionalDims dim, const std::optional<at::Scalar>& correction, bool keepdim, Tensor& out) {
  result_type(self, out.scalar_type());  // raises errors about the input
  TORCH_CHECK(at::isFloatingType(out.scalar_type()) && !at::isFloat8Type(out.scalar_type()), root ? "std" : "var",
              "(): Expected out tensor to have a floating dtype of 16 bits or more, but got ", out.scalar_type(), " instead");
  check_out_place(out, self.device());
  check_out_gradient(root ? "std" : "var", self, out);
  const Tensor found =
      std::get<0>(var_mean_operator().call(self, dim, correction_of(correction), root, keepdim, out.scalar_type()));
  at::native::resize_output_symint(out, found.sym_sizes());
  return out.copy_(found);
}

template <bool root>
void define(torch::Library& m, const std::string& name) {
  define_composite(m, name, "(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False", &var<root>,
                   &var_out<root>);
}

}  // namespace

}  // namespace gpureduce::variance

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  using namespace gpureduce::variance;
  define_reduction<VarMean>(m, "(Tensor, Tensor)");
  define_tuned<VarMean>(m, "_var_mean", "(Tensor, Tensor)");
  define_planning<planned>(m, "_var_mean", "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None");
  put(m, Key::Autograd, "_var_mean", &reduce_differentiable);
  put(m, Key::FuncTorchBatched, "_var_mean", &reduce_batched);
  define_composite(
      m, "var_mean(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
      &var_mean);
  define<false>(m, "var");
  define<true>(m, "std");
}
