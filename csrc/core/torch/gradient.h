// Shared by the derivatives of all operators: the node in torch's autograd graph, and the call that makes it.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "backend.h"

namespace gpureduce {

using torch::autograd::variable_list;
using Dims = std::vector<int64_t>;  // reduced dims, in ascending order

inline Dims dims_of(const DimMask& reduce) {
  Dims dims;
  for (size_t d = 0; d < reduce.size(); ++d)
    if (reduce[d]) dims.push_back(static_cast<int64_t>(d));
  return dims;
}

// A result with its reduced dims, of size 1.
inline at::Tensor with_reduced_dims(at::Tensor result, const Dims& dims, bool keepdim) {
  if (!keepdim)
    for (int64_t d : dims) result = result.unsqueeze(d);
  return result;
}

// Converts float8 to float32, since torch has no float8 arithmetic.
inline at::Tensor without_float8(const at::Tensor& x) { return at::isFloat8Type(x.scalar_type()) ? x.to(at::kFloat) : x; }

// Rounds a result once to a smaller dtype. torch converts float64 to small floats through float32, which rounds twice.
inline at::Tensor rounded(const at::Tensor& x, at::ScalarType dtype) {
  if (x.scalar_type() != at::kDouble || c10::elementSize(dtype) > 2) return x.to(dtype);
  return functional(Operation::sum).call(x.unsqueeze(-1), at::IntArrayRef(-1), false, dtype);
}

// Gives a pass to compiled autograd as a function, and returns its name there; and calls it for a node.
using PackedPass = variable_list (*)(const variable_list& grads, const std::vector<c10::IValue>& arguments);
std::string bind_function(const torch::autograd::SwapSavedVariables& swap, const std::string& name, PackedPass pass,
                          const std::vector<at::TypePtr>& types);
variable_list call_function(const torch::autograd::SwapSavedVariables& swap, const std::string& bound,
                            const variable_list& grads, torch::dynamo::autograd::PackedArgs& packed,
                            const torch::autograd::Node& node);

// The backward pass of an operator, described by its `Rule`:
// Facts      the data that the pass needs besides tensors; Facts::each() calls a function with each member, in a fixed order
// kKept      for each saved tensor: true if it is a result of the operator
// name       () or (facts) -> the node's name in graphs
// gradients  (gradients of the results, facts, saved tensors) -> gradients of the inputs, by differentiable torch operators
// A rule may also have `asked`, which adapts the facts to a pass that needs only some of the gradients, and kResults, the
// number of results that have a gradient: the first ones.
template <class Rule>
struct BackwardNode : torch::autograd::TraceableFunction {
  using Facts = typename Rule::Facts;
  static constexpr size_t kCount = Rule::kKept.size();
  using Tensors = std::array<at::Tensor, kCount>;

  Facts facts;
  std::array<torch::autograd::SavedVariable, kCount> kept;  // only tensors that this pass needs

  void keep(size_t i, const at::Tensor& tensor) { kept[i] = torch::autograd::SavedVariable(tensor, Rule::kKept[i]); }

  variable_list apply(variable_list&& grads) override {
    return Rule::gradients(std::move(grads), Rule::asked(facts, *this), tensors());
  }

  void release_variables() override {
    for (auto& each : kept) each.reset_data();
  }

  std::string name() const override {
    if constexpr (std::is_invocable_v<decltype(Rule::name), const Facts&>) return Rule::name(facts);
    else return Rule::name();
  }

  // For compiled autograd: the values that it specialises on and traces, in the form that torch generates for its own nodes.
  void compiled_args(torch::autograd::CompiledNodeArgs& args) const override {
    Facts::each(facts, [&](const auto& field) { args.collect(field); });
    for (size_t i = 0; i < kCount; ++i) args.collect(kept[i], Rule::kKept[i]);
  }

  variable_list apply_with_saved(const variable_list& grads, torch::autograd::SwapSavedVariables& swap) override {
    namespace compiled = torch::dynamo::autograd;
    Facts::each(facts, [&](auto& field) { swap.before(field); });
    for (auto& each : kept) swap.before(each);
    static auto* const names = new std::map<std::string, std::string>();  // compiled autograd runs in one thread at a time
    std::string& bound = (*names)[name()];
    if (bound.empty()) {
      std::vector<at::TypePtr> types;
      Facts::each(facts, [&](const auto& field) {
        types.push_back(compiled::IValuePacker<std::decay_t<decltype(field)>>::packed_type());
      });
      types.insert(types.end(), kCount, compiled::IValuePacker<at::Tensor>::packed_type());
      bound = bind_function(swap, name(), apply_packed, types);
    }
    compiled::PackedArgs packed;
    Facts::each(facts, [&](const auto& field) { packed.pack(field); });
    for (const at::Tensor& each : tensors()) packed.pack(each);
    const variable_list found = call_function(swap, bound, grads, packed, *this);
    Facts::each(facts, [&](auto& field) { swap.after(field); });
    for (auto& each : kept) swap.after(each);
    return found;
  }

  static variable_list apply_packed(const variable_list& grads, const std::vector<c10::IValue>& arguments) {
    torch::dynamo::autograd::PackedArgs packed(arguments);
    Facts facts;
    Facts::each(facts, [&](auto& field) { field = packed.unpack<std::decay_t<decltype(field)>>(); });
    Tensors tensors;
    for (at::Tensor& each : tensors) each = packed.unpack<at::Tensor>();
    return Rule::gradients(variable_list(grads), facts, tensors);
  }

 private:
  Tensors tensors() {
    Tensors found;
    for (size_t i = 0; i < kCount; ++i) found[i] = Rule::kKept[i] ? kept[i].unpack(getptr()) : kept[i].unpack();
    return found;
  }
};

// Defaults for a rule.
template <class FactsOfRule>
struct RuleOf {
  using Facts = FactsOfRule;
  static constexpr size_t kResults = 1;
  static const Facts& asked(const Facts& facts, const torch::autograd::Node&) { return facts; }
};

// Makes a rule's node. torch owns it by an intrusive_ptr, up to 2.11 by a shared_ptr.
template <class Rule>
auto make_node() {
  using Node = BackwardNode<Rule>;
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, torch::autograd::Node>) return c10::make_intrusive<Node>();
  else return std::shared_ptr<Node>(new Node, [](Node* node) { deleteNode(node); });
}

// --- calls ------------------------------------------------------------------------------------------------------------------

// True if a call on these needs derivatives.
template <class... Each>
bool is_tracked(const Each&... each) {
  return torch::autograd::compute_requires_grad(each...) || (... || torch::autograd::isFwGradDefined(each));
}

// Calls f(result, i) with each result that has a gradient.
template <class Rule, class F>
void each_differentiable(at::Tensor& result, F f) {
  f(result, 0);
}
template <class Rule, class Results, class F>
void each_differentiable(Results& results, F f) {
  size_t i = 0;
  std::apply([&](auto&... each) { (..., (i < Rule::kResults ? f(each, i++) : void())); }, results);
}

inline const at::Tensor& one_of(const at::Tensor& tangent, size_t) { return tangent; }
template <size_t n>
const at::Tensor& one_of(const std::array<at::Tensor, n>& tangents, size_t i) {
  return tangents[i];
}

// An operator's call under autograd, with the derivatives that are asked for, as in torch's own operators.
// inputs   the tensors that may need gradients, in the order in which the rule gives them: std::tie(...)
// below    () -> result, or a tuple of results: calls the operator below autograd
// facts    () -> Rule::Facts
// kept     (results) -> the array of tensors that the rule keeps; undefined where this call's pass needs none
// tangent  (results) -> the tangent of the result, or an array of tangents
template <class Rule, class Inputs, class Below, class Facts, class Kept, class Tangent>
auto with_derivatives(const Inputs& inputs, Below below, Facts facts, Kept kept, Tangent tangent) {
  namespace autograd = torch::autograd;
  const bool backward = std::apply([](const auto&... each) { return autograd::compute_requires_grad(each...); }, inputs);
  const bool forward = std::apply([](const auto&... each) { return (... || autograd::isFwGradDefined(each)); }, inputs);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return below();
  }();
  bool wanted = backward || forward;
  if (wanted)
    each_differentiable<Rule>(results,
                              [&](at::Tensor& r, size_t) { wanted &= autograd::isDifferentiableType(r.scalar_type()); });
  if (!wanted) return results;
  const auto node = backward ? make_node<Rule>() : nullptr;
  if (backward) {
    node->set_next_edges(std::apply([](const auto&... each) { return autograd::collect_next_edges(each...); }, inputs));
    node->facts = facts();
    each_differentiable<Rule>(results, [&](at::Tensor& r, size_t) { autograd::set_history(r, node); });
  }
  if (forward) {
    const auto tangents = tangent(results);
    each_differentiable<Rule>(
        results, [&](at::Tensor& r, size_t i) { r._set_fw_grad(one_of(tangents, i), /*level=*/0, /*is_inplace_op=*/false); });
  }
  if (backward) {  // saved with their tangents, for second derivatives
    const std::array<at::Tensor, Rule::kKept.size()> tensors = kept(results);
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].defined()) node->keep(i, tensors[i]);
  }
  return results;
}

}  // namespace gpureduce
