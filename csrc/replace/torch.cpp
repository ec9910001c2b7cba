// Replaces torch's own reductions with ours. While a replacement is on, aten's kernel for a device is one that calls our op. It
// lies below autograd, autocast and vmap, so these remain torch's; only what torch composes above autograd is taken there
// (impl_composed). The dispatcher keeps a stack of kernels: removing ours restores exactly the original one.
#include <ATen/WrapDimUtilsMulti.h>

#include <ATen/ops/logsumexp_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/rms_norm_compositeimplicitautograd_dispatch.h>

#include <cmath>
#include <memory>
#include <mutex>

#include "../core/torch/powers.h"
#include "../rows/torch.h"
#include "torch.h"

namespace gpureduce::replacing {

namespace {

// True if ours takes the call.
bool is_taken(Operation op, const at::Tensor& self, OptionalDtype dtype) {
  const OperationInfo row = info(op);
  const at::ScalarType type = self.scalar_type();
  if (!is_common(type) || has_names(self, 0) || self.dim() > static_cast<int64_t>(at::dim_bitset_size)) return false;
  if (is_wide_unsigned(type) && self.is_cuda()) return false;  // torch has no kernels
  if (!takes_complex(op) && (at::isComplexType(type) || (dtype && at::isComplexType(*dtype)))) return false;
  if (row.typing == Typing::same && is_empty(self)) return false;
  if (row.typing == Typing::log && (!at::isFloatingType(type) || is_empty(self))) return false;
  if (row.typing == Typing::real && at::isFloatingType(type) && dtype && !at::isFloatingType(*dtype)) return false;
  if (row.typing == Typing::count && !is_result(type, self.device())) return false;
  if (row.typing == Typing::mean || row.typing == Typing::norm) {
    if (!at::isFloatingType(type) && !at::isComplexType(type)) return false;
    if (dtype && *dtype != type && (row.typing == Typing::norm || !at::isFloatingType(*dtype))) return false;
  }
  return is_result(result_type(op, type, dtype), self.device());
}

bool is_taken_into(Operation op, const at::Tensor& self, OptionalDtype dtype, const at::Tensor& out) {
  const bool sum = info(op).has_dtype();
  const at::ScalarType result = out.scalar_type();
  const OptionalDtype asked = sum ? OptionalDtype(result) : dtype;
  return is_taken(op, self, asked) && result_type(op, self.scalar_type(), asked) == result &&
         (!sum || dtype.value_or(result) == result) && is_plain_out(out, self, result);
}

at::Tensor& reduce_into(Operation op, Keys keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                        at::Tensor& out) {
  const OptionalDtype asked = info(op).has_dtype() ? OptionalDtype(out.scalar_type()) : dtype;
  return out_variant(op).redispatch(below(keys), self, dim, keepdim, asked, out);
}

// The arguments of aten's reductions behind the input, as ours have them.
struct Arguments {
  OptionalDims dim;
  bool keepdim;
  OptionalDtype dtype;
};
Arguments arguments_of(OptionalDtype dtype = {}) { return {std::nullopt, false, dtype}; }
Arguments arguments_of(OptionalDims dim, bool keepdim = false, OptionalDtype dtype = {}) { return {dim, keepdim, dtype}; }
Arguments arguments_of(const int64_t& dim, bool keepdim, OptionalDtype dtype = {}) {
  return {at::IntArrayRef(dim), keepdim, dtype};
}

// An operation of the table. torch.any and torch.all reduce nothing over an empty list of dims, and logsumexp refuses one.
template <Operation op, class... Args>
struct Reduced {
  static bool takes(const at::Tensor& self, Args... args) {
    const Arguments given = arguments_of(args...);
    return !is_nothing(given) && is_taken(op, self, given.dtype);
  }
  template <bool traced>
  static at::Tensor ours(Keys keys, const at::Tensor& self, Args... args) {
    const Arguments given = arguments_of(args...);
    return call_ours<traced>(keys, functional(op), self, given.dim, given.keepdim, given.dtype);
  }
  static bool is_nothing(const Arguments& given) {
    constexpr Typing typing = info(op).typing;
    return (typing == Typing::truth || typing == Typing::log) && given.dim && given.dim->empty();
  }
};
template <Operation op, class... Args>
struct ReducedInto {
  static bool takes(const at::Tensor& self, Args... args, at::Tensor& out) {
    const Arguments given = arguments_of(args...);
    return !Reduced<op, Args...>::is_nothing(given) && is_taken_into(op, self, given.dtype, out);
  }
  template <bool traced>
  static at::Tensor& ours(Keys keys, const at::Tensor& self, Args... args, at::Tensor& out) {
    const Arguments given = arguments_of(args...);
    return reduce_into(op, keys, self, given.dim, given.keepdim, given.dtype, out);
  }
};

// What says which element is the largest or smallest one, or what both are. Dims of none, or out of range, are torch's errors.
template <auto handle, class Dim, bool takes_bool = true>
struct Extreme {
  static bool takes(const at::Tensor& self, Dim dim, bool) {
    const std::optional<int64_t> d = dim;
    const int64_t rank = std::max<int64_t>(self.dim(), 1);
    return is_taken(Operation::_amax, self, {}) && (takes_bool || self.scalar_type() != at::kBool) &&
           (!d || (*d >= -rank && *d < rank));
  }
  template <bool traced>
  static auto ours(Keys keys, const at::Tensor& self, Dim dim, bool keepdim) {
    return call_ours<traced>(keys, handle(), self, dim, keepdim);
  }
};
template <auto handle>
struct ExtremeIndex : Extreme<handle, std::optional<int64_t>, /*takes_bool=*/false> {
  static at::ScalarType result(const at::Tensor&, std::optional<int64_t>, bool) { return at::kLong; }
  template <bool traced>
  static at::Tensor ours(Keys keys, const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
    const OptionalDims dims = dim ? OptionalDims(at::IntArrayRef(*dim)) : OptionalDims();
    return call_ours<traced>(keys, handle(), self, dims, keepdim);
  }
};
// The same into two tensors.
template <class Function, class Dim, at::ScalarType second = at::ScalarType::Undefined>
struct IntoTwo {
  static bool takes(const at::Tensor& self, Dim dim, bool keepdim, at::Tensor& a, at::Tensor& b) {
    return Function::takes(self, dim, keepdim) && !a.is_alias_of(b) && is_plain_out(a, self, self.scalar_type()) &&
           is_plain_out(b, self, second == at::ScalarType::Undefined ? self.scalar_type() : second);
  }
  template <bool traced>
  static std::tuple<at::Tensor&, at::Tensor&> ours(Keys keys, const at::Tensor& self, Dim dim, bool keepdim, at::Tensor& a,
                                                   at::Tensor& b) {
    const TwoTensors found = Function::template ours<traced>(keys, self, dim, keepdim);
    return {write(a, std::get<0>(found)), write(b, std::get<1>(found))};
  }
};

// The norms that we have; other orders are left to torch.
std::optional<Operation> norm_of(const at::Scalar& ord) {
  const double given = ord.isComplex() ? std::numeric_limits<double>::quiet_NaN() : ord.toDouble();
  for (const Power& power : kPowers)
    if (power.ord == given) return power.norm;
  return {};
}
struct Norm {
  static bool takes(const at::Tensor& self, const at::Scalar& ord, OptionalDims, bool, OptionalDtype dtype) {
    const auto op = norm_of(ord);
    return !is_empty(self) && op && is_taken(*op, self, dtype);
  }
  template <bool traced>
  static at::Tensor ours(Keys keys, const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim,
                         OptionalDtype dtype) {
    return call_ours<traced>(keys, functional(*norm_of(ord)), self, dim, keepdim, dtype);
  }
};
struct NormInto {
  static bool takes(const at::Tensor& self, const at::Scalar& ord, OptionalDims, bool, OptionalDtype dtype, at::Tensor& out) {
    const auto op = norm_of(ord);
    return !is_empty(self) && op && is_taken_into(*op, self, dtype, out);
  }
  template <bool traced>
  static at::Tensor& ours(Keys keys, const at::Tensor& self, const at::Scalar& ord, OptionalDims dim, bool keepdim,
                          OptionalDtype dtype, at::Tensor& out) {
    return reduce_into(*norm_of(ord), keys, self, dim, keepdim, dtype, out);
  }
};

// Variances have an operator with two results. Calls without degrees of freedom are left to torch, which warns.
using Correction = std::optional<at::Scalar>;

template <bool root>
struct VarianceAndMean {
  static bool takes(const at::Tensor& self, OptionalDims dim, const Correction& correction, bool) {
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
  static TwoTensors ours(Keys keys, const at::Tensor& self, OptionalDims dim, const Correction& correction, bool keepdim) {
    return call_ours<traced>(keys, var_mean_operator(), self, dim, number(correction), root, keepdim, OptionalDtype());
  }
};
template <bool root>
struct Variance : VarianceAndMean<root>, OfFirstDtype {
  template <bool traced>
  static at::Tensor ours(Keys keys, const at::Tensor& self, OptionalDims dim, const Correction& correction, bool keepdim) {
    return std::get<0>(VarianceAndMean<root>::template ours<traced>(keys, self, dim, correction, keepdim));
  }
};

struct Dot {
  static bool takes(const at::Tensor& self, const at::Tensor& other) {
    const at::ScalarType type = self.scalar_type();
    return is_common(type) && at::isFloatingType(type) && type == other.scalar_type() && self.dim() == 1 && other.dim() == 1 &&
           TORCH_GUARD_OR_TRUE(self.sym_size(0).sym_eq(other.sym_size(0))) && self.device() == other.device() &&
           !has_names(self, 0) && !has_names(other, 0);
  }
  template <bool traced>
  static at::Tensor ours(Keys keys, const at::Tensor& self, const at::Tensor& other) {
    return call_ours<traced>(keys, weighted_sum_operator(), self, other, OptionalDims(), false,
                             OptionalDtype(self.scalar_type()));
  }
};

// True for tensors of a dtype that ours takes, with elements, and without names.
bool is_float_row(const at::Tensor& x) {
  return is_common(x.scalar_type()) && at::isFloatingType(x.scalar_type()) && x.dim() > 0 && !is_empty(x) && !has_names(x, 0);
}

// Of an operator of ours that takes torch's arguments.
template <auto handle>
struct Alike {
  template <bool traced, class... Args>
  static auto ours(Keys keys, const Args&... args) {
    return call_ours<traced>(keys, handle(), args...);
  }
};

bool is_softmax_taken(const at::Tensor& self, int64_t dim) {
  return is_float_row(self) && dim >= -self.dim() && dim < self.dim();
}

template <bool logarithm>
struct Softmax {
  static bool takes(const at::Tensor& self, int64_t dim, bool to_float) {
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
  static bool takes(const at::Tensor& grad, const at::Tensor& result, int64_t dim, at::ScalarType dtype) {
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

template <class Shape>
int64_t dims_in(const Shape& shape) {
  return static_cast<int64_t>(shape.size());
}

// Whether torch takes weights of these dtypes: the input's, and on the CPU float32 ones beside halves.
bool are_dtypes_taken(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias) {
  const auto all = [&](at::ScalarType type) {
    const auto is = [&](const OptionalTensor& x) { return !x || !x->defined() || x->scalar_type() == type; };
    return is(weight) && is(bias);
  };
  return all(input.scalar_type()) || (input.is_cpu() && c10::elementSize(input.scalar_type()) == 2 && all(at::kFloat));
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

struct LayerNorm {
  static bool takes(const at::Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                    const OptionalTensor& bias, double) {
    return norm_dims(input, shape, weight, bias) > 0 && are_dtypes_taken(input, weight, bias);
  }
  template <bool traced>
  static Three ours(Keys keys, const at::Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                    const OptionalTensor& bias, double eps) {
    return call_ours<traced>(keys, rows::layer_norm_operator(), input, dims_in(shape), weight, bias, eps);
  }
};

// True if ours takes the gradient of a norm that it takes.
bool is_norm_gradient(const at::Tensor& grad, const at::Tensor& input) {
  return grad.sym_sizes() == input.sym_sizes() && is_float_row(grad) && grad.scalar_type() == input.scalar_type();
}

struct LayerNormBackward {
  static bool takes(const at::Tensor& grad, const at::Tensor& input, c10::SymIntArrayRef shape, const at::Tensor&,
                    const at::Tensor&, const OptionalTensor& weight, const OptionalTensor& bias, std::array<bool, 3>) {
    return LayerNorm::takes(input, shape, weight, bias, 0) && is_norm_gradient(grad, input);
  }
  template <bool traced>
  static Three ours(Keys keys, const at::Tensor& grad, const at::Tensor& input, c10::SymIntArrayRef shape,
                    const at::Tensor& mean, const at::Tensor& r, const OptionalTensor& weight, const OptionalTensor& bias,
                    std::array<bool, 3> mask) {
    return call_ours<traced>(keys, rows::layer_norm_backward_operator(), grad, input, dims_in(shape), mean, r, weight, bias,
                             0.0, mask);
  }
};

// torch's kernels for CUDA.
struct RmsNorm {
  static bool takes(const at::Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight, std::optional<double>) {
    return norm_dims(input, c10::fromIntArrayRefSlow(shape), weight, {}) > 0 && are_dtypes_taken(input, weight, {});
  }
  template <bool traced>
  static TwoTensors ours(Keys keys, const at::Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                         std::optional<double> eps) {
    return call_ours<traced>(keys, rows::rms_norm_operator(), input, dims_in(shape), weight,
                             eps.value_or(rows::epsilon_of(input.scalar_type())));
  }
};

struct RmsNormBackward {
  static bool takes(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef shape, const at::Tensor&,
                    const OptionalTensor& weight, std::array<bool, 2>) {
    return RmsNorm::takes(input, shape, weight, {}) && is_norm_gradient(grad, input);
  }
  template <bool traced>
  static TwoTensors ours(Keys keys, const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef shape, const at::Tensor& r,
                         const OptionalTensor& weight, std::array<bool, 2> mask) {
    return call_ours<traced>(keys, rows::rms_norm_backward_operator(), grad, input, dims_in(shape), r, weight, 0.0, mask);
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
  static bool takes(const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight, int64_t reduction,
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
  static bool takes(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight,
                    int64_t reduction, c10::SymInt ignore_index, const at::Tensor& total_weight) {
    const auto is_like = [&](const at::Tensor& x) {
      return x.scalar_type() == self.scalar_type() && x.device() == self.device();
    };
    if (!NllLoss<images>::takes(self, target, weight, reduction, std::move(ignore_index)) || !is_like(grad) ||
        !is_like(total_weight) || total_weight.dim() != 0 || (images && !self.is_contiguous_or_false()))
      return false;
    if (reduction != at::Reduction::None) return grad.dim() == 0;
    return grad.sym_sizes() == target.sym_sizes();
  }
};

// The form with out= and total_weight=.
template <bool images>
struct NllLossInto : NllLoss<images> {
  using Loss = NllLoss<images>;
  using Results = std::tuple<at::Tensor&, at::Tensor&>;

  static bool takes(const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight, int64_t reduction,
                    c10::SymInt ignore_index, at::Tensor& out, at::Tensor& total_weight) {
    const at::ScalarType type = self.scalar_type();
    return Loss::takes(self, target, weight, reduction, std::move(ignore_index)) && is_plain_out(out, self, type) &&
           is_plain_out(total_weight, self, type);
  }
  template <bool traced>
  static Results ours(Keys keys, const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight,
                      int64_t reduction, c10::SymInt ignore_index, at::Tensor& out, at::Tensor& total_weight) {
    const auto [found, total] = Loss::template ours<traced>(keys, self, target, weight, reduction, ignore_index);
    return {write(out, found), write(total_weight, total)};
  }
};

// --- the table ------------------------------------------------------------------------------------------------------------

template <class Function, typename Form<Function>::Original* cpu, typename Form<Function>::Original* cuda,
          typename Form<Into<Function>>::Original* cpu_out, typename Form<Into<Function>>::Original* cuda_out>
void impl_both(Table& m, const std::string& name, const char* out) {
  m.impl<Function, cpu, cuda>(name);
  m.impl_on_device<Into<Function>, cpu_out, cuda_out>(name + out);
}

using at::IntArrayRef;

// The functions that can be replaced, by torch's names.
const Functions& replaced() {
  static auto* const all = [] {
    using Op = Operation;
    auto* functions = new Functions{
        {"sum",
         [](Table& m) {
           m.impl<Reduced<Op::sum, OptionalDims, bool, OptionalDtype>, GPUREDUCE_TORCH(sum)>("sum.dim_IntList");
           m.impl_on_device<ReducedInto<Op::sum, OptionalDims, bool, OptionalDtype>, GPUREDUCE_TORCH(sum_outf)>(
               "sum.IntList_out");
         }},
        {"mean",
         [](Table& m) {
           m.impl<Reduced<Op::mean, OptionalDims, bool, OptionalDtype>, GPUREDUCE_TORCH(mean)>("mean.dim");
           m.impl_on_device<ReducedInto<Op::mean, OptionalDims, bool, OptionalDtype>, GPUREDUCE_TORCH(mean_outf)>("mean.out");
         }},
        {"nansum",
         [](Table& m) {
           m.impl<Reduced<Op::nansum, OptionalDims, bool, OptionalDtype>, GPUREDUCE_TORCH(nansum)>("nansum");
           m.impl_on_device<ReducedInto<Op::nansum, OptionalDims, bool, OptionalDtype>, GPUREDUCE_TORCH(nansum_outf)>(
               "nansum.out");
         }},
        {"prod",
         [](Table& m) {
           m.impl<Reduced<Op::prod, OptionalDtype>, GPUREDUCE_TORCH(prod)>("prod");
           m.impl<Reduced<Op::prod, int64_t, bool, OptionalDtype>, GPUREDUCE_TORCH(prod)>("prod.dim_int");
           m.impl_on_device<ReducedInto<Op::prod, int64_t, bool, OptionalDtype>, GPUREDUCE_TORCH(prod_outf)>("prod.int_out");
         }},
        {"amax",
         [](Table& m) {
           m.impl<Reduced<Op::_amax, IntArrayRef, bool>, GPUREDUCE_TORCH(amax)>("amax");
           m.impl_on_device<ReducedInto<Op::_amax, IntArrayRef, bool>, GPUREDUCE_TORCH(amax_outf)>("amax.out");
         }},
        {"amin",
         [](Table& m) {
           m.impl<Reduced<Op::_amin, IntArrayRef, bool>, GPUREDUCE_TORCH(amin)>("amin");
           m.impl_on_device<ReducedInto<Op::_amin, IntArrayRef, bool>, GPUREDUCE_TORCH(amin_outf)>("amin.out");
         }},
        {"argmax",
         [](Table& m) {
           impl_both<ExtremeIndex<argmax_operator>, GPUREDUCE_TORCH(argmax), GPUREDUCE_TORCH(argmax_outf)>(m, "argmax", ".out");
         }},
        {"argmin",
         [](Table& m) {
           impl_both<ExtremeIndex<argmin_operator>, GPUREDUCE_TORCH(argmin), GPUREDUCE_TORCH(argmin_outf)>(m, "argmin", ".out");
         }},
        {"max",
         [](Table& m) {
           using Max = Extreme<max_operator, int64_t>;
           m.impl<Max, GPUREDUCE_TORCH(max)>("max.dim");
           m.impl_on_device<IntoTwo<Max, int64_t, at::kLong>, GPUREDUCE_TORCH(max_outf)>("max.dim_max");
         }},
        {"min",
         [](Table& m) {
           using Min = Extreme<min_operator, int64_t>;
           m.impl<Min, GPUREDUCE_TORCH(min)>("min.dim");
           m.impl_on_device<IntoTwo<Min, int64_t, at::kLong>, GPUREDUCE_TORCH(min_outf)>("min.dim_min");
         }},
        {"aminmax",
         [](Table& m) {
           using Both = Extreme<aminmax_operator, std::optional<int64_t>>;
           m.impl<Both, GPUREDUCE_TORCH(aminmax)>("aminmax");
           m.impl_on_device<IntoTwo<Both, std::optional<int64_t>>, GPUREDUCE_TORCH(aminmax_outf)>("aminmax.out");
         }},
        {"any",
         [](Table& m) {
           m.impl<Reduced<Op::_any>, GPUREDUCE_TORCH(any)>("any");
           m.impl_on_device<ReducedInto<Op::_any>, GPUREDUCE_TORCH(any_outf)>("any.all_out");
           m.impl<Reduced<Op::_any, int64_t, bool>, GPUREDUCE_TORCH(any)>("any.dim");
           m.impl_on_device<ReducedInto<Op::_any, int64_t, bool>, GPUREDUCE_TORCH(any_outf)>("any.out");
           m.impl<Reduced<Op::_any, OptionalDims, bool>, GPUREDUCE_TORCH(any)>("any.dims");
           m.impl_on_device<ReducedInto<Op::_any, OptionalDims, bool>, GPUREDUCE_TORCH(any_outf)>("any.dims_out");
         }},
        {"all",
         [](Table& m) {
           m.impl<Reduced<Op::_all>, GPUREDUCE_TORCH(all)>("all");
           m.impl_on_device<ReducedInto<Op::_all>, GPUREDUCE_TORCH(all_outf)>("all.all_out");
           m.impl<Reduced<Op::_all, int64_t, bool>, GPUREDUCE_TORCH(all)>("all.dim");
           m.impl_on_device<ReducedInto<Op::_all, int64_t, bool>, GPUREDUCE_TORCH(all_outf)>("all.out");
           m.impl<Reduced<Op::_all, OptionalDims, bool>, GPUREDUCE_TORCH(all)>("all.dims");
           m.impl_on_device<ReducedInto<Op::_all, OptionalDims, bool>, GPUREDUCE_TORCH(all_outf)>("all.dims_out");
         }},
        {"count_nonzero",
         [](Table& m) {
           m.impl<Reduced<Op::_count_nonzero, IntArrayRef>, GPUREDUCE_TORCH(count_nonzero)>("count_nonzero.dim_IntList");
         }},
        {"vector_norm",
         [](Table& m) {
           m.impl<Norm, GPUREDUCE_TORCH(linalg_vector_norm)>("linalg_vector_norm");
           m.impl_on_device<NormInto, GPUREDUCE_TORCH(linalg_vector_norm_outf)>("linalg_vector_norm.out");
         }},
        {"logsumexp",
         [](Table& m) {  // torch has one kernel for all devices
           constexpr auto original = at::compositeexplicitautograd::logsumexp;
           m.impl<Reduced<Op::_logsumexp, IntArrayRef, bool>, original, original>("logsumexp");
         }},
        {"var",
         [](Table& m) {
           impl_both<Variance<false>, GPUREDUCE_TORCH(var), GPUREDUCE_TORCH(var_outf)>(m, "var.correction", "_out");
         }},
        {"std",
         [](Table& m) {
           impl_both<Variance<true>, GPUREDUCE_TORCH(std), GPUREDUCE_TORCH(std_outf)>(m, "std.correction", "_out");
         }},
        {"var_mean", [](Table& m) { m.impl<VarianceAndMean<false>, GPUREDUCE_TORCH(var_mean)>("var_mean.correction"); }},
        {"std_mean", [](Table& m) { m.impl<VarianceAndMean<true>, GPUREDUCE_TORCH(std_mean)>("std_mean.correction"); }},
        {"dot", [](Table& m) { m.impl<Dot, GPUREDUCE_TORCH(dot)>("dot"); }},
        {"softmax",
         [](Table& m) {
           impl_both<Softmax<false>, GPUREDUCE_TORCH(_softmax), GPUREDUCE_TORCH(_softmax_outf)>(m, "_softmax", ".out");
           impl_both<SoftmaxBackward<false>, GPUREDUCE_TORCH(_softmax_backward_data),
                     GPUREDUCE_TORCH(_softmax_backward_data_outf)>(m, "_softmax_backward_data", ".out");
         }},
        {"log_softmax",
         [](Table& m) {
           impl_both<Softmax<true>, GPUREDUCE_TORCH(_log_softmax), GPUREDUCE_TORCH(_log_softmax_outf)>(m, "_log_softmax",
                                                                                                       ".out");
           impl_both<SoftmaxBackward<true>, GPUREDUCE_TORCH(_log_softmax_backward_data),
                     GPUREDUCE_TORCH(_log_softmax_backward_data_outf)>(m, "_log_softmax_backward_data", ".out");
         }},
        {"layer_norm",
         [](Table& m) {
           m.impl<LayerNorm, GPUREDUCE_TORCH(native_layer_norm_symint)>("native_layer_norm");
           m.impl<LayerNormBackward, GPUREDUCE_TORCH(native_layer_norm_backward_symint)>("native_layer_norm_backward");
         }},
        {"rms_norm",
         [](Table& m) {
           if (m.device == DispatchKey::CPU) return m.impl_composed("rms_norm", TORCH_FN(composed_rms_norm));
#ifdef GPUREDUCE_WITH_CUDA
           m.impl_on_device<RmsNorm, at::cuda::_fused_rms_norm, at::cuda::_fused_rms_norm>("_fused_rms_norm");
           constexpr auto backward = at::cuda::_fused_rms_norm_backward;
           m.impl_on_device<RmsNormBackward, backward, backward>("_fused_rms_norm_backward");
#endif
           m.impl_traced<RmsNorm>("_fused_rms_norm");
           m.impl_traced<RmsNormBackward>("_fused_rms_norm_backward");
         }},
        {"nll_loss",
         [](Table& m) {
           m.impl<NllLoss<false>, GPUREDUCE_TORCH(nll_loss_forward_symint)>("nll_loss_forward");
           m.impl_on_device<NllLossInto<false>, GPUREDUCE_TORCH(nll_loss_forward_symint_outf)>("nll_loss_forward.output");
           impl_both<NllLossBackward<false>, GPUREDUCE_TORCH(nll_loss_backward_symint),
                     GPUREDUCE_TORCH(nll_loss_backward_symint_outf)>(m, "nll_loss_backward", ".grad_input");
           m.impl<NllLoss<true>, GPUREDUCE_TORCH(nll_loss2d_forward_symint)>("nll_loss2d_forward");
           m.impl_on_device<NllLossInto<true>, GPUREDUCE_TORCH(nll_loss2d_forward_symint_outf)>("nll_loss2d_forward.output");
           impl_both<NllLossBackward<true>, GPUREDUCE_TORCH(nll_loss2d_backward_symint),
                     GPUREDUCE_TORCH(nll_loss2d_backward_symint_outf)>(m, "nll_loss2d_backward", ".grad_input");
         }},
    };
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
    Table table(*library, key_, above.get());
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

std::string Table::define_traced(const std::string& name) {
  const size_t dot = std::min(name.find('.'), name.size());
  const std::string overload = name.substr(std::min(dot + 1, name.size()));
  const auto aten = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(), overload.c_str());
  library_.def(aten.schema().cloneWithName("gpureduce::_traced_" + name.substr(0, dot), overload));
  traced.push_back(name);
  return "_traced_" + name;
}

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
    gpureduce::replacing::Table table(m);
    function(table);
    gpureduce::replacing::traced()[name] = table.traced;
  }
  m.def("_traced(str name) -> str[]", [](const std::string& name) {
    const auto found = gpureduce::replacing::traced().find(name);
    TORCH_CHECK_VALUE(found != gpureduce::replacing::traced().end(), "_traced(): name: no function '", name, "' is replaced");
    return found->second;
  });
}
