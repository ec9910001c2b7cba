// Gradients, built as torch builds those of its own ops: a Node for the backward pass, and the op itself on tangents in forward
// mode. Both call differentiable torch ops, so torch.func, tracing and derivatives of any order work as well.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include "backend.h"

namespace gpureduce {

namespace {

using torch::autograd::variable_list;
using Sizes = std::vector<c10::SymInt>;
using Dims = std::vector<int64_t>;

// What a backward pass needs to know about the input; it needs no data. `dims` are the reduced dims, in ascending order.
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

// The gradient of the input: an expanded view of the gradient of the result. A division or a conversion happens before the
// expand, while the gradient is small.
template <Operation op>
variable_list backward(at::Tensor grad, const Saved& input) {
  if (!grad.defined()) return {at::Tensor()};
  if constexpr (info(op).divides) {
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
struct Backward : torch::autograd::TraceableFunction {
  Saved input;

  variable_list apply(variable_list&& grads) override { return backward<op>(std::move(grads[0]), input); }

  std::string name() const override { return std::string("gpureduce_") + name_of(op) + "_backward"; }

  // For compiled autograd: what it specializes on and what it traces, in the form that torch generates for its own nodes.
  void compiled_args(torch::autograd::CompiledNodeArgs& args) const override {
    Saved::each(input, [&](const auto& field) { args.collect(field); });
  }

  variable_list apply_with_saved(const variable_list& grads, torch::autograd::SwapSavedVariables& saved) override {
    namespace compiled = torch::dynamo::autograd;
    Saved::each(input, [&](auto& field) { saved.before(field); });
    const auto& compiler = compiled::getPyCompilerInterface();
    static const std::string bound = [&] {  // once in a process
      std::vector<at::TypePtr> types;
      Saved::each(input, [&](const auto& field) {
        types.push_back(compiled::IValuePacker<std::decay_t<decltype(field)>>::packed_type());
      });
      return compiler->bind_function(saved.get_py_compiler(), name(), apply_packed, types);
    }();
    compiled::PackedArgs packed;
    Saved::each(input, [&](const auto& field) { packed.pack(field); });
    const auto metadata = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        compiled::get_input_metadata(next_edges()));
    variable_list result =
        compiler->call_function(saved.get_py_compiler(), "apply_functional", bound, grads, packed.vec(), metadata);
    Saved::each(input, [&](auto& field) { saved.after(field); });
    return result;
  }

  static variable_list apply_packed(const variable_list& grads, const std::vector<c10::IValue>& arguments) {
    torch::dynamo::autograd::PackedArgs packed(arguments);
    Saved input;
    Saved::each(input, [&](auto& field) { field = packed.unpack<std::decay_t<decltype(field)>>(); });
    return backward<op>(grads[0], input);
  }
};

// The pointer by which torch owns a node: an intrusive_ptr, or up to 2.11 a shared_ptr.
template <class T>
auto make_node() {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, torch::autograd::Node>) return c10::make_intrusive<T>();
  else return std::shared_ptr<T>(new T, [](T* node) { deleteNode(node); });
}

template <Operation op>
at::Tensor reduce(c10::DispatchKeySet keys, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  const bool backward = torch::autograd::compute_requires_grad(self), forward = torch::autograd::isFwGradDefined(self);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = functional<op>().redispatch(keys & c10::after_autograd_keyset, self, dim, keepdim, dtype);
  }
  if (!(backward || forward) || !torch::autograd::isDifferentiableType(result.scalar_type())) return result;
  if (backward) {
    const auto node = make_node<Backward<op>>();
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    const DimMask reduce = reduced_dims(dim, self.dim());
    for (int64_t d = 0; d < self.dim(); ++d)
      if (reduce[d]) node->input.dims.push_back(d);
    node->input.sizes = self.sym_sizes().vec();
    node->input.keepdim = keepdim;
    node->input.dtype = self.scalar_type();
    torch::autograd::set_history(result, node);
  }
  if (forward)
    result._set_fw_grad(functional<op>().call(self._fw_grad(/*level=*/0), dim, keepdim, dtype), /*level=*/0,
                        /*is_inplace_op=*/false);
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
