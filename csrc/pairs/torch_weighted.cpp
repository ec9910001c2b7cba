// weighted_sum, the sum of the products of two inputs, and dot, which calls it. And both of exact products, rounded once.
#include "torch_weighted.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>

#include "../core/numeric/weighted.h"
#include "../core/torch/applied.h"
#include "../core/torch/batch.h"
#include "../core/torch/explain.h"
#include "../core/torch/gradient.h"
#include "../core/torch/plumbing.h"
#include "../exact/torch.h"
#include "cpu_weighted.h"

namespace gpureduce::weighted {

at::DimVector common_sizes(at::IntArrayRef self, at::IntArrayRef weight) { return at::infer_size_dimvector(self, weight); }

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

void check_devices(const char* name, const at::Tensor& self, const at::Tensor& weight, const char* first, const char* second) {
  TORCH_CHECK(self.device() == weight.device(), name, ": Expected all tensors to be on the same device, but ", first, " is on ",
              self.device(), " and ", second, " is on ", weight.device());
}

namespace {

using at::Tensor;

constexpr const char* kName = "weighted_sum";
constexpr const char* kArguments =
    "(Tensor self, Tensor weight, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None";

// --- checks ---------------------------------------------------------------------------------------------------------------

void check_dtype(at::ScalarType type, const char* what, const char* function = kName) {
  TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(type), function, ": complex numbers are not supported: ", what, " ", type);
  dtype_of(type, what, function);
}

// The dtype of the result: `dtype`, or otherwise as for a sum of elements of the promoted dtype.
at::ScalarType result_type(const Tensor& self, const Tensor& weight, OptionalDtype dtype) {
  check_dtype(self.scalar_type(), "an input of dtype");
  check_dtype(weight.scalar_type(), "a weight of dtype");
  const at::ScalarType promoted = dtype ? *dtype : at::promoteTypes(self.scalar_type(), weight.scalar_type());
  const at::ScalarType result = gpureduce::result_type(Operation::sum, promoted, dtype);
  check_dtype(result, "a result of dtype");
  return result;
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
  r.in = dtype_of(self.scalar_type(), "an input of dtype");
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
  complete(r, dims, reduce, out, keepdim, self.device(), "weighted_sum: input and weight have");
  return r;
}

// A call after its checks. Both inputs are expanded to `common` sizes.
template <class Int>
struct Call {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  DimMask reduce;
  decltype(common_sizes(at::ArrayRef<Int>(), at::ArrayRef<Int>())) common;
};

using Function = Tensor(const Tensor&, const Tensor&, OptionalDims, bool, OptionalDtype);

// A sum; or an exact one, whose products are not rounded, and whose result is rounded once.
struct WeightedSum {
  Which which;

  const char* name() const {
    if (which.op != Operation::sum) return nullptr;
    return which.exact ? "exact_weighted_sum" : kName;
  }
  static constexpr const char* kArguments = weighted::kArguments;
  static constexpr bool out_has_dtype() { return true; }
  static constexpr bool has_gradient() { return true; }
  static constexpr bool autocasts(c10::DeviceType device) { return device == at::kCUDA; }
  using Function = weighted::Function;

  template <class Int>
  static Call<Int> check(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                         const Tensor* out) {
    check_devices(kName, self, weight);
    Call<Int> call;
    call.dtype = result_type(self, weight, dtype || !out ? dtype : OptionalDtype(out->scalar_type()));
    if (out) check_out_dtype(*out, call.dtype);
    if (out) check_out_place(*out, self.device());
    call.reduce = reduced_dims(dim, std::max(self.dim(), weight.dim()));
    call.common = common_sizes(sizes_of<Int>(self), sizes_of<Int>(weight));
    call.sizes = result_sizes(at::ArrayRef<Int>(call.common), call.reduce, keepdim);
    return call;
  }

  static void refuse(const Call<int64_t>& call, const Tensor& self, const Tensor& weight, OptionalDims, bool keepdim,
                     OptionalDtype) {
    make_reduction(self, weight, call.common, call.reduce, call.dtype, {}, keepdim);
  }

  void compute(const Call<int64_t>& call, const Tensor& self, const Tensor& weight, OptionalDims, bool keepdim, OptionalDtype,
               const Tensor& out, const Tuning& tuning) const {
    if (which.exact && out.is_floating_point()) return exact::sum_products(self, weight, call.reduce, keepdim, out);
    const Reduction r = make_reduction(self, weight, call.common, call.reduce, call.dtype, out, keepdim);
    if (r.problem.outputs == 0) return;
    if (r.problem.length == 0) {
      out.zero_();
      return;
    }
    run_on(self.device(), r, tuning, cpu::run_weighted);
  }
};

// A call that is only planned.
Reduction planned(const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  const auto call = WeightedSum::check<int64_t>(self, weight, dim, keepdim, dtype, nullptr);
  return make_reduction(self, weight, call.common, call.reduce, call.dtype, {}, keepdim);
}

// --- gradients ------------------------------------------------------------------------------------------------------------

using Sizes = std::vector<c10::SymInt>;

// The facts that a backward pass needs besides the inputs.
struct WeightedFacts {
  Sizes self_sizes, weight_sizes;
  at::ScalarType self_dtype = at::kFloat, weight_dtype = at::kFloat;
  Dims dims;
  bool keepdim = false, exact = false, needs_self = false, needs_weight = false;

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.self_sizes);
    f(self.weight_sizes);
    f(self.self_dtype);
    f(self.weight_dtype);
    f(self.dims);
    f(self.keepdim);
    f(self.exact);
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
    result = weighted_sum_operator().call(other, grad, at::IntArrayRef(over), true, dtype);
    for (int64_t d = 0; d < missing; ++d) result = result.squeeze(0);
  }
  return result.expand_symint(sizes);
}

using Weighted = Plumbing<WeightedSum>;

struct WeightedRule : RuleOf<WeightedFacts> {
  static constexpr std::array<bool, 2> kKept = {false, false};  // self and weight

  static std::string name(const WeightedFacts& saved) {
    return std::string("gpureduce_") + WeightedSum{{Operation::sum, saved.exact}}.name() + "_backward";
  }

  static WeightedFacts asked(WeightedFacts saved, torch::autograd::Node& node) {
    saved.needs_self = saved.needs_self && node.task_should_compute_output(0);
    saved.needs_weight = saved.needs_weight && node.task_should_compute_output(1);
    return saved;
  }

  static variable_list gradients(variable_list grads, const WeightedFacts& saved, const std::array<Tensor, 2>& kept) {
    variable_list result(2);
    if (!grads[0].defined()) return result;
    const Tensor grad = with_reduced_dims(grads[0], saved.dims, saved.keepdim);
    if (saved.needs_self) result[0] = gradient(grad, kept[1], saved.self_sizes, saved.self_dtype);
    if (saved.needs_weight) result[1] = gradient(grad, kept[0], saved.weight_sizes, saved.weight_dtype);
    return result;
  }
};

// The tangent of the result, from tangents of the inputs.
Tensor tangent(Which which, const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim, at::ScalarType dtype) {
  const Tensor &of_self = self._fw_grad(/*level=*/0), &of_weight = weight._fw_grad(/*level=*/0);
  Tensor change;
  if (of_self.defined())
    change = Weighted::functional(which).call(of_self, weight._fw_primal(/*level=*/0), dim, keepdim, dtype);
  if (of_weight.defined()) {
    const Tensor more = Weighted::functional(which).call(self._fw_primal(/*level=*/0), of_weight, dim, keepdim, dtype);
    change = change.defined() ? change + more : more;
  }
  return change;
}

Tensor reduce_differentiable(Which which, c10::DispatchKeySet keys, const Tensor& self, const Tensor& weight, OptionalDims dim,
                             bool keepdim, OptionalDtype dtype) {
  return with_derivatives<WeightedRule>(
      std::tie(self, weight),
      [&] {
        return Weighted::functional(which).redispatch(keys & c10::after_autograd_keyset, self, weight, dim, keepdim, dtype);
      },
      [&] {
        return WeightedFacts{self.sym_sizes().vec(),
                             weight.sym_sizes().vec(),
                             self.scalar_type(),
                             weight.scalar_type(),
                             dims_of(reduced_dims(dim, std::max(self.dim(), weight.dim()))),
                             keepdim,
                             which.exact,
                             self.requires_grad(),
                             weight.requires_grad()};
      },
      [&](const Tensor&) {
        return std::array<Tensor, 2>{weight.requires_grad() ? self : Tensor(), self.requires_grad() ? weight : Tensor()};
      },
      [&](const Tensor& result) { return tangent(which, self, weight, dim, keepdim, result.scalar_type()); });
}

Tensor reduce_batched(Which which, const Tensor& self, const Tensor& weight, OptionalDims dim, bool keepdim,
                      OptionalDtype dtype) {
  return batched_reduction(kName, std::array{self, weight}, dim, keepdim,
                           [&](const std::array<Tensor, 2>& inputs, OptionalDims dims, bool keeps) {
                             return Weighted::functional(which).call(inputs[0], inputs[1], dims, keeps, dtype);
                           });
}

// --- dot ------------------------------------------------------------------------------------------------------------------

// Raises the errors of torch.dot, also for two devices. Returns the dtype of the result; under torch.autocast, different dtypes
// are promoted.
OptionalDtype dot_dtype(const Tensor& self, const Tensor& other, OptionalDtype dtype) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ", other.dim(),
              "D tensors");
  check_devices("dot()", self, other, "self", "other");
  const auto is_eligible = [](const Tensor& x) { return x.is_floating_point() && x.scalar_type() != at::kDouble; };
  const bool promotes =
      self.is_cuda() && at::autocast::is_autocast_enabled(at::kCUDA) && is_eligible(self) && is_eligible(other);
  TORCH_CHECK(self.scalar_type() == other.scalar_type() || promotes,
              "dot : expected both vectors to have same dtype, but found ", self.scalar_type(), " and ", other.scalar_type());
  check_dtype(self.scalar_type(), "tensors of dtype", "dot");
  if (dtype) check_dtype(*dtype, "a result of dtype", "dot");
  const c10::SymInt count = self.sym_size(0), others = other.sym_size(0);
  TORCH_SYM_CHECK(count.sym_eq(others), "inconsistent tensor size, expected tensor [", count, "] and src [", others,
                  "] to have the same number of elements, but got ", count, " and ", others, " elements respectively");
  const at::ScalarType promoted = at::promoteTypes(self.scalar_type(), other.scalar_type());
  return dtype || !promotes ? dtype : OptionalDtype(gpureduce::result_type(Operation::sum, promoted, {}));
}

Tensor dot(Which which, const Tensor& self, const Tensor& other, OptionalDtype dtype) {
  return Weighted::functional(which).call(self, other, std::nullopt, false, dot_dtype(self, other, dtype));
}

// torch.dot's `out` must have the dtype of the result.
Tensor& dot_out(Which which, const Tensor& self, const Tensor& other, OptionalDtype dtype, Tensor& out) {
  dtype = dot_dtype(self, other, dtype);
  check_out_dtype(out, result_type(self, other, dtype));
  return Weighted::out_variant(which).call(self, other, std::nullopt, false, dtype, out);
}

}  // namespace

}  // namespace gpureduce::weighted

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  using namespace gpureduce::weighted;
  for (const bool exact : {false, true}) {
    const Which which(Operation::sum, exact);
    const char* const name = WeightedSum{which}.name();
    define_reduction_with_out<WeightedSum>(m, which);
    put(m, Key::Autograd, name, kernel_of(which, &reduce_differentiable));
    put(m, Key::FuncTorchBatched, name, kernel_of(which, &reduce_batched));
    define_composite(m, exact ? exact_name("dot") : "dot", "(Tensor self, Tensor other, *, ScalarType? dtype=None",
                     kernel_of(which, &dot), kernel_of(which, &dot_out));
  }
  define_tuned<WeightedSum>(m, "_weighted_sum", "Tensor");
  define_planning<planned>(m, "_weighted_sum", kArguments);
}
