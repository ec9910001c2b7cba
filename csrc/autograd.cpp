// Gradients, built as torch builds those of its own ops: a Node for the backward pass, and in forward mode the op itself on
// tangents, or a sum of what they do to the result. Both call differentiable torch ops, so torch.func, tracing and derivatives
// of any order work as well.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "gradient.h"

namespace gpureduce {

namespace {

using Sizes = std::vector<c10::SymInt>;

// What a backward pass needs to know about the input; that of a sum needs no data.
struct Saved {
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

// For each element the product of all others of its output, without a division, which a zero would spoil: of those before it
// and of those after it.
at::Tensor product_of_others(const at::Tensor& self, const Dims& dims) {
  if (dims.empty() || self.sym_numel() == 0) return at::ones_like(self);
  Dims order;  // kept dims first
  for (int64_t d = 0; d < self.dim(); ++d)
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
  const int64_t kept = static_cast<int64_t>(order.size());
  order.insert(order.end(), dims.begin(), dims.end());
  Dims back(order.size());
  for (size_t d = 0; d < order.size(); ++d) back[order[d]] = static_cast<int64_t>(d);
  const at::Tensor permuted = self.permute(order), x = permuted.flatten(kept);
  const auto before = [](const at::Tensor& x) {
    const at::Tensor first = at::ones_like(x.narrow_symint(-1, 0, 1));
    return at::cat({first, x.narrow_symint(-1, 0, x.sym_size(-1) - 1)}, -1).cumprod(-1);
  };
  const at::Tensor others = before(x) * before(x.flip(-1)).flip(-1);
  return others.reshape_symint(permuted.sym_sizes()).permute(back);
}

// The gradient of the input, where results and their gradients have the reduced dims. Where a norm is 0, so is that, as in
// torch. Elements are divided by the norm before all else: that is at most 1, and cannot overflow.
template <Operation op>
at::Tensor gradient_of(const at::Tensor& grad, const at::Tensor& given, const at::Tensor& norm, const Dims& dims) {
  const at::Tensor self = at::isFloat8Type(given.scalar_type()) ? given.to(grad.scalar_type()) : given;
  const auto over_norm = [&](const at::Tensor& x) { return x.div(norm).masked_fill(norm == 0, 0); };
  if constexpr (op == Operation::prod) {
    const bool small = c10::elementSize(self.scalar_type()) == 2;  // their products of many would soon overflow
    return product_of_others(small ? self.to(at::kFloat) : self, dims) * grad;
  } else if constexpr (op == Operation::nansum) {
    return grad * self.isnan().logical_not();
  } else if constexpr (op == Operation::_logsumexp) {
    return grad * (self - norm).exp();
  } else if constexpr (op == Operation::_logsum) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "_logsum(): pairs have no derivative");
    return {};
  } else if constexpr (op == Operation::_amax || op == Operation::_amin) {
    const at::Tensor mask = self.eq(norm);
    return dims.empty() ? grad * mask : grad * mask / mask.sum(dims, /*keepdim=*/true);
  } else if constexpr (op == Operation::_norm_1) {
    return self.sgn() * grad;
  } else if constexpr (op == Operation::_powsum_2) {
    return self * (2 * grad);
  } else if constexpr (op == Operation::_powsum_3) {
    return self * self.abs() * (3 * grad);
  } else if constexpr (op == Operation::_norm_2) {
    return over_norm(self) * grad;
  } else if constexpr (op == Operation::_norm_3) {
    const at::Tensor part = over_norm(self);
    return part * part.abs() * grad;
  } else if constexpr (op == Operation::_root_2) {
    return over_norm(grad / 2).expand_as(self);
  } else if constexpr (op == Operation::_root_3) {
    return over_norm(over_norm(grad / 3)).expand_as(self);
  } else {  // shared by those that are the largest or smallest
    at::Tensor magnitude = self.detach().abs();
    if (self.is_complex())  // whose magnitudes torch rounds otherwise
      magnitude = functional<Operation::_norm_1>().call(self.detach().unsqueeze(-1), at::IntArrayRef(-1), false,
                                                        c10::toComplexType(norm.scalar_type()));
    const at::Tensor mask = magnitude.eq(norm).logical_or(magnitude.isnan());
    return dims.empty() ? self.sgn() * grad : self.sgn() * ((grad / mask.sum(dims, /*keepdim=*/true)) * mask);
  }
}

template <Operation op>
variable_list backward_of(const at::Tensor& grad, const Saved& input, const at::Tensor& self, const at::Tensor& norm) {
  if (!grad.defined() || op == Operation::_norm_0) return {at::Tensor()};
  const at::Tensor all = info(op).keeps_result() ? with_reduced_dims(norm, input.dims, input.keepdim) : norm;
  const at::Tensor result = gradient_of<op>(with_reduced_dims(grad, input.dims, input.keepdim), self, all, input.dims);
  return {result.scalar_type() == input.dtype ? result : result.to(input.dtype)};
}

// What a tangent of the input does to the result.
template <Operation op>
at::Tensor tangent_of(const at::Tensor& tangent, const at::Tensor& self, const at::Tensor& norm, const Dims& dims,
                      bool keepdim) {
  if (op == Operation::_norm_0) return at::zeros_like(norm);
  const at::Tensor all = with_reduced_dims(norm, dims, keepdim);
  at::Tensor change = gradient_of<op>(at::ones_like(all), self, all, dims);
  if (change.is_complex()) change = change.conj();
  change = change * tangent;
  if (change.is_complex()) change = at::real(change);
  if (dims.empty()) return change.to(norm.scalar_type());
  return functional<Operation::sum>().call(change, at::IntArrayRef(dims), keepdim, norm.scalar_type());
}

// The gradient of the input: an expanded view of the gradient of the result. A division or a conversion happens before the
// expand, while the gradient is small.
template <Operation op>
variable_list backward(at::Tensor grad, const Saved& input) {
  if (!grad.defined()) return {at::Tensor()};
  if constexpr (info(op).finish == Finish::quotient) {
    c10::SymInt count = 1;
    for (int64_t d : input.dims) count *= input.sizes[d];
    const at::ScalarType type = grad.scalar_type();  // torch does not divide all of them
    if (at::isFloat8Type(type)) grad = grad.to(at::kFloat);
    else if (type == at::kComplexHalf) grad = grad.to(at::kComplexFloat);
    grad = grad.div(count);
  }
  if (grad.is_complex() && !at::isComplexType(input.dtype)) grad = at::real(grad);
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

template <Operation op>
struct Rule : RuleOf<Saved> {
  static constexpr bool kKeeps = info(op).keeps_input();
  static constexpr auto kKept = [] {
    if constexpr (kKeeps) return std::array<bool, 2>{false, true};  // the input, and the result if that is needed
    else return std::array<bool, 0>{};
  }();

  static std::string name() { return std::string("gpureduce_") + name_of(op) + "_backward"; }

  template <class Tensors>
  static variable_list gradients(variable_list grads, const Saved& input, const Tensors& kept) {
    if constexpr (kKeeps) return backward_of<op>(grads[0], input, kept[0], kept[1]);
    else return backward<op>(std::move(grads[0]), input);
  }
};

template <Operation op>
at::Tensor reduce(c10::DispatchKeySet keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  const bool backward = torch::autograd::compute_requires_grad(self), forward = torch::autograd::isFwGradDefined(self);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = functional<op>().redispatch(keys & c10::after_autograd_keyset, self, dim, keepdim, dtype);
  }
  if (!(backward || forward) || !torch::autograd::isDifferentiableType(result.scalar_type())) return result;
  const Dims dims = dims_of(reduced_dims(dim, self.dim()));
  const auto node = backward ? make_node<Rule<op>>() : nullptr;
  if (backward) {
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    node->facts.dims = dims;
    node->facts.sizes = self.sym_sizes().vec();
    node->facts.keepdim = keepdim;
    node->facts.dtype = self.scalar_type();
    torch::autograd::set_history(result, node);
  }
  if (forward) {
    const at::Tensor& tangent = self._fw_grad(/*level=*/0);
    at::Tensor change;
    if constexpr (info(op).keeps_input()) change = tangent_of<op>(tangent, self._fw_primal(/*level=*/0), result, dims, keepdim);
    else change = functional<op>().call(tangent, dim, keepdim, dtype);
    result._set_fw_grad(change, /*level=*/0, /*is_inplace_op=*/false);
  }
  if (backward && info(op).keeps_input()) {  // with their tangents, for derivatives of derivatives
    node->keep(0, self);
    if (info(op).keeps_result()) node->keep(1, result);
  }
  return result;
}

template <Operation op>
at::Tensor& reduce_out(c10::DispatchKeySet keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                       at::Tensor& out) {
  if (torch::autograd::compute_requires_grad(self, out)) torch::autograd::throw_error_out_requires_grad(name_of(op));
  TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(self) && !torch::autograd::isFwGradDefined(out),
                              "Trying to use forward AD with ", name_of(op),
                              "_out that does not support it because it is an out= function");
  const at::AutoDispatchBelowAutograd below;
  return out_variant<op>().redispatch(keys & c10::after_autograd_keyset, self, dim, keepdim, dtype, out);
}

// Counts the write to `out`, so that a backward pass that needs the old values raises an error, as after torch's op. A refused
// call has written nothing, and counts nothing.
template <Operation op>
at::Tensor& reduce_out_counted(c10::DispatchKeySet keys, const at::Tensor& self, OptionalDims dim, bool keepdim,
                               OptionalDtype dtype, at::Tensor& out) {
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    out_variant<op>().redispatch(keys & c10::after_ADInplaceOrView_keyset, self, dim, keepdim, dtype, out);
  }
  torch::autograd::increment_version(out);
  return out;
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_IMPL(gpureduce, Autograd, m) {
  gpureduce::for_each_operation([&](auto op) {
    const std::string name = name_of(op);
    m.impl(name.c_str(), TORCH_FN(gpureduce::reduce<op>));
    m.impl((name + ".out").c_str(), TORCH_FN(gpureduce::reduce_out<op>));
  });
}

TORCH_LIBRARY_IMPL(gpureduce, ADInplaceOrView, m) {
  gpureduce::for_each_operation(
      [&](auto op) { m.impl((std::string(name_of(op)) + ".out").c_str(), TORCH_FN(gpureduce::reduce_out_counted<op>)); });
}
