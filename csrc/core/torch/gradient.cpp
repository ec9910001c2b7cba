#include "gradient.h"

namespace gpureduce {

namespace compiled = torch::dynamo::autograd;

std::string bind_function(const torch::autograd::SwapSavedVariables& swap, const std::string& name, PackedPass pass,
                          const std::vector<at::TypePtr>& types) {
  return compiled::getPyCompilerInterface()->bind_function(swap.get_py_compiler(), name, pass, types);
}

variable_list call_function(const torch::autograd::SwapSavedVariables& swap, const std::string& bound,
                            const variable_list& grads, compiled::PackedArgs& packed, const torch::autograd::Node& node) {
  const auto metadata = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
      compiled::get_input_metadata(node.next_edges()));
  return compiled::getPyCompilerInterface()->call_function(swap.get_py_compiler(), "apply_functional", bound, grads,
                                                           packed.vec(), metadata);
}

}  // namespace gpureduce
