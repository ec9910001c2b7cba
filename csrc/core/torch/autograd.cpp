// Gradients, built as for torch's own ops: a Node for the backward pass. In forward mode, the op itself is called on the
// tangent, or a formula's products with the tangent are summed. Both call differentiable torch ops, so torch.func, tracing and
// derivatives of any order work, too.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>

#include "applied.h"
#include "gradient.h"

namespace gpureduce {

namespace {

using Sizes = std::vector<c10::SymInt>;

// The facts about the input that a backward pass needs. A sum's pass needs no tensors.
struct TableFacts {
  Sizes sizes;
  Dims dims;
  bool keepdim = false;
  at::ScalarType dtype = at::kFloat;

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.sizes);
    f(self.dims);
    f(self.keepdim);
    f(self.dtype);
  }
};

// Small floats as float32, others unchanged: twice a half may overflow a half.
at::Tensor widened(const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); }

// The gradient of the input, rounded once to `dtype`. `grad` and `result` have the reduced dims. Where a norm is 0, so is the
// gradient, as in torch. Elements are divided by the norm first: the quotient is at most 1, and cannot overflow.
template <Operation op>
at::Tensor gradient_of(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& result, const Dims& dims,
                       at::ScalarType dtype) {
  const bool complex = self.is_complex();
  const auto over_dims = [&](auto operation, const at::Tensor& x, OptionalDtype type) {
    return functional<decltype(operation)::value>().call(x, at::IntArrayRef(dims), !dims.empty(), type);
  };
  const auto count_of = [&](const at::Tensor& x) {
    return over_dims(std::integral_constant<Operation, Operation::_count_nonzero>(), x, std::nullopt);
  };
  const auto magnitudes = [&] {  // of complex numbers, since torch's abs() rounds differently on each device
    const at::ScalarType type =
        result.defined() ? c10::toComplexType(result.scalar_type()) : at::toOpMathType(self.scalar_type());
    return functional<Operation::_norm_1>().call(self.unsqueeze(-1), at::IntArrayRef(-1), false, type);
  };
  if constexpr (op == Operation::prod) {
    c10::SymInt count = 1;
    for (int64_t d : dims) count *= self.sym_size(d);
    const at::Tensor x = self.detach();  // the formula's derivative includes operands that depend on the elements
    const at::Tensor product = over_dims(std::integral_constant<Operation, Operation::_nonzero_prod>(), x, at::kDouble);
    return apply(Formula::others, self, {grad, product, count_of(x), count}, dtype);
  } else if constexpr (op == Operation::nansum) {
    return apply(Formula::kept, self, {grad}, dtype);
  } else if constexpr (op == Operation::_logsumexp) {
    return apply(Formula::exponent, self, {grad, result}, dtype);
  } else if constexpr (op == Operation::_nonzero_prod) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, name_of(op), "(): it has no derivative");
    return {};
  } else if constexpr (op == Operation::_amax || op == Operation::_amin) {
    return apply(Formula::equal, self,
                 {grad, result, count_of(without_float8(compared(self)).eq(without_float8(result.detach())))}, dtype);
  } else if constexpr (op == Operation::_norm_1) {
    return complex ? apply(Formula::ratio, self, {grad, magnitudes()}, dtype) : apply(Formula::sign, self, {grad}, dtype);
  } else if constexpr (op == Operation::_powsum_2) {
    return apply(Formula::product, self, {2 * widened(grad)}, dtype);
  } else if constexpr (op == Operation::_powsum_3) {
    const at::Tensor grads = 3 * widened(grad);
    return complex ? apply(Formula::product, self, {magnitudes() * grads}, dtype)
                   : apply(Formula::square, self, {grads}, dtype);
  } else if constexpr (op == Operation::_norm_2) {
    return apply(Formula::ratio, self, {grad, result}, dtype);
  } else if constexpr (op == Operation::_norm_3) {
    if (!complex) return apply(Formula::ratio_square, self, {grad, result}, dtype);
    const at::Tensor sizes = magnitudes(), part = apply(Formula::ratio, sizes, {grad, result}, sizes.scalar_type());
    return apply(Formula::ratio, self, {part, result}, dtype);
  } else if constexpr (op == Operation::_root_2 || op == Operation::_root_3) {
    const at::Tensor wide = widened(grad);
    const auto over_root = [&](const at::Tensor& x) { return apply(Formula::ratio, x, {{}, result}, x.scalar_type()); };
    const at::Tensor part =
        over_root(apply(Formula::quotient, wide, {{}, {}, {}, op == Operation::_root_2 ? 2 : 3}, wide.scalar_type()));
    return (op == Operation::_root_2 ? part : over_root(part)).to(dtype).expand_as(self);
  } else {  // all largest or smallest elements share the gradient
    const at::Tensor sizes = complex ? magnitudes() : without_float8(compared(self)).abs(), x = sizes.detach();
    const at::Tensor ties = count_of(x.eq(result.detach()).logical_or(x.isnan()));
    if (!complex) return apply(Formula::extreme, self, {grad, result, ties}, dtype);
    const at::Tensor share = apply(Formula::extreme, x, {grad, result, ties}, sizes.scalar_type());
    return apply(Formula::ratio, self, {share, sizes}, dtype);
  }
}

template <Operation op>
variable_list backward_of(const at::Tensor& grad, const TableFacts& input, const at::Tensor& self, const at::Tensor& norm) {
  if (!grad.defined() || op == Operation::_norm_0) return {at::Tensor()};
  const at::Tensor all = info(op).keeps_result() ? with_reduced_dims(norm, input.dims, input.keepdim) : norm;
  return {gradient_of<op>(with_reduced_dims(grad, input.dims, input.keepdim), self, all, input.dims, input.dtype)};
}

// The tangent of the result, from a tangent of the input.
template <Operation op, bool exact>
at::Tensor tangent_of(const at::Tensor& tangent, const at::Tensor& self, const at::Tensor& norm, const Dims& dims,
                      bool keepdim) {
  if (op == Operation::_norm_0) return at::zeros_like(norm);
  const at::Tensor all = with_reduced_dims(norm, dims, keepdim);
  const at::ScalarType wide = at::isFloat8Type(self.scalar_type()) ? at::kFloat : at::toOpMathType(self.scalar_type());
  at::Tensor change = gradient_of<op>(at::ones_like(all), self, all, dims, wide);
  if (change.is_complex()) change = change.conj();
  change = change * tangent.to(wide);
  if (change.is_complex()) change = at::real(change);
  if (dims.empty()) return change.to(norm.scalar_type());
  return functional<Operation::sum, exact>().call(change, at::IntArrayRef(dims), keepdim, norm.scalar_type());
}

// The gradient of the input: an expanded view of the gradient of the result. Division and conversion come before the expand,
// while the gradient is small.
template <Operation op>
variable_list backward(at::Tensor grad, const TableFacts& input) {
  if (!grad.defined()) return {at::Tensor()};
  if (grad.is_complex() && !at::isComplexType(input.dtype)) grad = at::real(grad);
  if constexpr (info(op).finish == Finish::quotient) {
    Given given;
    for (int64_t d : input.dims) given.count *= input.sizes[d];
    given.count = given.count.max(1);  // the mean of no elements has no gradient, but second derivatives must not be 0 / 0
    const bool real = !grad.is_complex();
    grad = apply(Formula::quotient, grad, std::move(given), real ? c10::toRealValueType(input.dtype) : input.dtype);
  }
  if (grad.scalar_type() != input.dtype) grad = grad.to(input.dtype);
  if (!input.keepdim) {
    int64_t leading = 0;  // expand() adds leading dims by itself
    for (int64_t d : input.dims) {
      if (d == leading) ++leading;
      else grad = grad.unsqueeze(d - leading);
    }
  }
  return {grad.expand_symint(input.sizes)};
}

// The dtype in which a result is saved for the backward pass if the result's own dtype, of two bytes, has too few digits for
// the gradient or may overflow. Otherwise none.
template <Operation op>
OptionalDtype kept_dtype(at::ScalarType input, OptionalDtype dtype) {
  constexpr bool kRounds = op == Operation::_norm_2 || op == Operation::_norm_3 || op == Operation::_logsumexp;
  if (!kRounds || c10::elementSize(result_type(op, input, dtype)) != 2) return std::nullopt;
  return op == Operation::_logsumexp ? at::kDouble : at::isComplexType(input) ? at::kComplexFloat : at::kFloat;
}

// `wide`: the pass keeps a wider result than the operator's own.
template <Operation op, bool exact, bool wide = false>
struct TableRule : RuleOf<TableFacts> {
  static constexpr bool kKeeps = info(op).keeps_input();
  static constexpr auto kKept = [] {
    if constexpr (kKeeps) return std::array<bool, 2>{false, !wide};  // the input, and the result if needed
    else return std::array<bool, 0>{};
  }();

  static std::string name() { return std::string("gpureduce_") + operator_name<op, exact>() + "_backward"; }

  template <class Tensors>
  static variable_list gradients(variable_list grads, const TableFacts& input, const Tensors& kept) {
    if constexpr (kKeeps) return backward_of<op>(grads[0], input, kept[0], kept[1]);
    else return backward<op>(std::move(grads[0]), input);
  }
};

// A call under autograd. `wide`: the result of a wider dtype, for the pass; undefined if the operator's own serves.
template <class Rule, Operation op, bool exact>
at::Tensor differentiable(c10::DispatchKeySet keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                          const at::Tensor& wide) {
  const auto dims = [&] { return dims_of(reduced_dims(dim, self.dim())); };
  return with_derivatives<Rule>(
      std::tie(self),
      [&] { return functional<op, exact>().redispatch(keys & c10::after_autograd_keyset, self, dim, keepdim, dtype); },
      [&] { return TableFacts{self.sym_sizes().vec(), dims(), keepdim, self.scalar_type()}; },
      [&](const at::Tensor& result) {
        if constexpr (info(op).keeps_input())
          return std::array{self, !info(op).keeps_result() ? at::Tensor() : wide.defined() ? wide : result};
        else return std::array<at::Tensor, 0>();
      },
      [&](const at::Tensor& result) {
        const at::Tensor& tangent = self._fw_grad(/*level=*/0);
        if constexpr (info(op).keeps_input()) {
          const at::Tensor primal = wide.defined() ? wide._fw_primal(/*level=*/0) : result;
          return rounded(tangent_of<op, exact>(tangent, self._fw_primal(/*level=*/0), primal, dims(), keepdim),
                         result.scalar_type());
        } else {
          return functional<op, exact>().call(tangent, dim, keepdim, dtype);
        }
      });
}

template <Operation op, bool exact = false>
at::Tensor reduce(c10::DispatchKeySet keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  if (is_tracked(self)) {
    if (const OptionalDtype wide = kept_dtype<op>(self.scalar_type(), dtype)) {
      const at::Tensor result = functional<op, exact>().call(self, dim, keepdim, wide);
      if constexpr (exact)  // rounded from `wide` it would be rounded twice
        return differentiable<TableRule<op, exact, true>, op, exact>(keys, self, dim, keepdim, dtype, result);
      else return rounded(result, result_type(op, self.scalar_type(), dtype));
    }
  }
  return differentiable<TableRule<op, exact>, op, exact>(keys, self, dim, keepdim, dtype, {});
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  for_each_operation([&](auto op) { put(m, Key::Autograd, name_of(op), &reduce<op>); });
  for_each_exact_operation([&](auto op) { put(m, Key::Autograd, operator_name<op, true>(), &reduce<op, true>); });
}
