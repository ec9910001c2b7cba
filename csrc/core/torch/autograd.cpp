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

// The operator, and the facts about the input, that a backward pass needs. A sum's pass needs no tensors.
struct TableFacts {
  int64_t which = 0;  // Which::number()
  Sizes sizes;
  Dims dims;
  bool keepdim = false;
  at::ScalarType dtype = at::kFloat;

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.which);
    f(self.sizes);
    f(self.dims);
    f(self.keepdim);
    f(self.dtype);
  }
};

// Small floats as float32, others unchanged: twice a half may overflow a half.
at::Tensor widened(const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); }

// The gradient of the input, rounded once to `dtype`. `grad` and `result` have the reduced dims. The gradient of a norm
// of 0 is 0, as in torch. Elements are divided by the norm first: the quotient is at most 1, and cannot overflow.
at::Tensor gradient_of(Operation op, const at::Tensor& grad, const at::Tensor& self, const at::Tensor& result, const Dims& dims,
                       at::ScalarType dtype) {
  const bool complex = self.is_complex();
  const auto over_dims = [&](Operation operation, const at::Tensor& x, OptionalDtype type) {
    return functional(operation).call(x, at::IntArrayRef(dims), !dims.empty(), type);
  };
  const auto count_of = [&](const at::Tensor& x) { return over_dims(Operation::_count_nonzero, x, std::nullopt); };
  const auto magnitudes = [&] {  // of complex numbers, since torch's abs() rounds differently on each device
    const at::ScalarType type =
        result.defined() ? c10::toComplexType(result.scalar_type()) : at::toOpMathType(self.scalar_type());
    return functional(Operation::_norm_1).call(self.unsqueeze(-1), at::IntArrayRef(-1), false, type);
  };
  switch (op) {
    case Operation::prod: {
      c10::SymInt count = 1;
      for (int64_t d : dims) count *= self.sym_size(d);
      const at::Tensor x = self.detach();  // the formula's derivative includes operands that depend on the elements
      const at::Tensor product = over_dims(Operation::_nonzero_prod, x, at::kDouble);
      return apply(Formula::others, self, {grad, product, count_of(x), count}, dtype);
    }
    case Operation::nansum: return apply(Formula::kept, self, {grad}, dtype);
    case Operation::_logsumexp: return apply(Formula::exponent, self, {grad, result}, dtype);
    case Operation::_nonzero_prod: TORCH_CHECK_NOT_IMPLEMENTED(false, name_of(op), "(): it has no derivative");
    case Operation::_amax:
    case Operation::_amin:
      return apply(Formula::equal, self,
                   {grad, result, count_of(without_float8(compared(self)).eq(without_float8(result.detach())))}, dtype);
    case Operation::_norm_1:
      return complex ? apply(Formula::ratio, self, {grad, magnitudes()}, dtype) : apply(Formula::sign, self, {grad}, dtype);
    case Operation::_powsum_2: return apply(Formula::product, self, {2 * widened(grad)}, dtype);
    case Operation::_powsum_3: {
      const at::Tensor grads = 3 * widened(grad);
      return complex ? apply(Formula::product, self, {magnitudes() * grads}, dtype)
                     : apply(Formula::square, self, {grads}, dtype);
    }
    case Operation::_norm_2: return apply(Formula::ratio, self, {grad, result}, dtype);
    case Operation::_norm_3: {
      if (!complex) return apply(Formula::ratio_square, self, {grad, result}, dtype);
      const at::Tensor sizes = magnitudes(), part = apply(Formula::ratio, sizes, {grad, result}, sizes.scalar_type());
      return apply(Formula::ratio, self, {part, result}, dtype);
    }
    case Operation::_root_2:
    case Operation::_root_3: {
      const at::Tensor wide = widened(grad);
      const auto over_root = [&](const at::Tensor& x) { return apply(Formula::ratio, x, {{}, result}, x.scalar_type()); };
      const at::Tensor part =
          over_root(apply(Formula::quotient, wide, {{}, {}, {}, op == Operation::_root_2 ? 2 : 3}, wide.scalar_type()));
      return (op == Operation::_root_2 ? part : over_root(part)).to(dtype).expand_as(self);
    }
    default: {  // all largest or smallest elements share the gradient
      const at::Tensor sizes = complex ? magnitudes() : without_float8(compared(self)).abs(), x = sizes.detach();
      const at::Tensor ties = count_of(x.eq(result.detach()).logical_or(x.isnan()));
      if (!complex) return apply(Formula::extreme, self, {grad, result, ties}, dtype);
      const at::Tensor share = apply(Formula::extreme, x, {grad, result, ties}, sizes.scalar_type());
      return apply(Formula::ratio, self, {share, sizes}, dtype);
    }
  }
}

// The tangent of the result, from a tangent of the input.
at::Tensor tangent_of(Which which, const at::Tensor& tangent, const at::Tensor& self, const at::Tensor& norm, const Dims& dims,
                      bool keepdim) {
  if (which.op == Operation::_norm_0) return at::zeros_like(norm);
  const at::Tensor all = with_reduced_dims(norm, dims, keepdim);
  const at::ScalarType wide = at::isFloat8Type(self.scalar_type()) ? at::kFloat : at::toOpMathType(self.scalar_type());
  at::Tensor change = gradient_of(which.op, at::ones_like(all), self, all, dims, wide);
  if (change.is_complex()) change = change.conj();
  change = change * tangent.to(wide);
  if (change.is_complex()) change = at::real(change);
  if (dims.empty()) return change.to(norm.scalar_type());
  return functional({Operation::sum, which.exact}).call(change, at::IntArrayRef(dims), keepdim, norm.scalar_type());
}

// The dtype in which a result is saved for the backward pass if the result's own dtype, of two bytes, has too few digits for
// the gradient or may overflow. Otherwise none.
OptionalDtype kept_dtype(Operation op, at::ScalarType input, OptionalDtype dtype) {
  const bool rounds = op == Operation::_norm_2 || op == Operation::_norm_3 || op == Operation::_logsumexp;
  if (!rounds || c10::elementSize(result_type(op, input, dtype)) != 2) return std::nullopt;
  return op == Operation::_logsumexp ? at::kDouble : at::isComplexType(input) ? at::kComplexFloat : at::kFloat;
}

struct TableRule : RuleOf<TableFacts> {
  static std::string name(const TableFacts& input) {
    return std::string("gpureduce_") + operator_name(Which::of(input.which)) + "_backward";
  }
};

// The pass of an operation whose gradient depends on no element.
struct LinearRule : TableRule {
  static constexpr std::array<bool, 0> kKept = {};

  // The gradient of the input: an expanded view of the gradient of the result. Division and conversion come before the expand,
  // while the gradient is small.
  static variable_list gradients(variable_list grads, const TableFacts& input, const std::array<at::Tensor, 0>&) {
    at::Tensor grad = std::move(grads[0]);
    if (!grad.defined()) return {at::Tensor()};
    if (grad.is_complex() && !at::isComplexType(input.dtype)) grad = at::real(grad);
    if (info(Which::of(input.which).op).finish == Finish::quotient) {
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
};

// The pass of an operation whose gradient depends on the elements. `wide`: it keeps a wider result than the operator's own.
template <bool wide>
struct KeepingRule : TableRule {
  static constexpr std::array<bool, 2> kKept = {false, !wide};  // the input, and the result if needed

  static variable_list gradients(variable_list grads, const TableFacts& input, const std::array<at::Tensor, 2>& kept) {
    const Operation op = Which::of(input.which).op;
    if (!grads[0].defined() || op == Operation::_norm_0) return {at::Tensor()};
    const auto with_dims = [&](const at::Tensor& x) { return with_reduced_dims(x, input.dims, input.keepdim); };
    const at::Tensor result = info(op).keeps_result() ? with_dims(kept[1]) : kept[1];
    return {gradient_of(op, with_dims(grads[0]), kept[0], result, input.dims, input.dtype)};
  }
};

// A call under autograd. `wide`: the result of a wider dtype, for the pass; undefined if the operator's own serves.
template <class Rule>
at::Tensor differentiable(Which which, c10::DispatchKeySet keys, const at::Tensor& self, OptionalDims dim, bool keepdim,
                          OptionalDtype dtype, const at::Tensor& wide = {}) {
  constexpr bool kKeeps = !Rule::kKept.empty();
  const auto dims = [&] { return dims_of(reduced_dims(dim, self.dim())); };
  return with_derivatives<Rule>(
      std::tie(self),
      [&] { return functional(which).redispatch(keys & c10::after_autograd_keyset, self, dim, keepdim, dtype); },
      [&] {
        return TableFacts{static_cast<int64_t>(which.number()), self.sym_sizes().vec(), dims(), keepdim, self.scalar_type()};
      },
      [&](const at::Tensor& result) {
        if constexpr (kKeeps)
          return std::array{self, !info(which.op).keeps_result() ? at::Tensor() : wide.defined() ? wide : result};
        else return std::array<at::Tensor, 0>();
      },
      [&](const at::Tensor& result) {
        const at::Tensor& tangent = self._fw_grad(/*level=*/0);
        if constexpr (kKeeps) {
          const at::Tensor primal = wide.defined() ? wide._fw_primal(/*level=*/0) : result;
          return rounded(tangent_of(which, tangent, self._fw_primal(/*level=*/0), primal, dims(), keepdim),
                         result.scalar_type());
        } else {
          return functional(which).call(tangent, dim, keepdim, dtype);
        }
      });
}

at::Tensor reduce(Which which, c10::DispatchKeySet keys, const at::Tensor& self, OptionalDims dim, bool keepdim,
                  OptionalDtype dtype) {
  if (!info(which.op).keeps_input()) return differentiable<LinearRule>(which, keys, self, dim, keepdim, dtype);
  if (is_tracked(self)) {
    if (const OptionalDtype wide = kept_dtype(which.op, self.scalar_type(), dtype)) {
      const at::Tensor result = functional(which).call(self, dim, keepdim, wide);
      if (which.exact)  // rounded from `wide` it would be rounded twice
        return differentiable<KeepingRule<true>>(which, keys, self, dim, keepdim, dtype, result);
      return rounded(result, result_type(which.op, self.scalar_type(), dtype));
    }
  }
  return differentiable<KeepingRule<false>>(which, keys, self, dim, keepdim, dtype);
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  for (size_t i = 0; i < Which::kCount; ++i)
    if (const char* const name = operator_name(Which::of(i))) put(m, Key::Autograd, name, kernel_of(Which::of(i), &reduce));
}
