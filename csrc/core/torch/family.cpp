// The functions without dtype=. Each calls an operation of the table (operation.h), which has gradients, vmap and the rest.
#include <torch/library.h>

#include "dispatch.h"

namespace gpureduce {

namespace {

// torch.any and torch.all reduce no dims if the list of dims is empty. torch's other functions, and our operations, reduce all.
template <Operation op>
bool reduces_nothing(OptionalDims dim) {
  return info(op).typing == Typing::truth && dim && dim->empty();
}

template <Operation op>
at::Tensor reduce(const at::Tensor& self, OptionalDims dim, bool keepdim) {
  if (reduces_nothing<op>(dim)) return functional<op>().call(self.unsqueeze(-1), at::IntArrayRef(-1), false, std::nullopt);
  return functional<op>().call(self, dim, keepdim, std::nullopt);
}

template <Operation op>
at::Tensor& reduce_out(const at::Tensor& self, OptionalDims dim, bool keepdim, at::Tensor& out) {
  if (reduces_nothing<op>(dim))
    return out_variant<op>().call(self.unsqueeze(-1), at::IntArrayRef(-1), false, std::nullopt, out);
  return out_variant<op>().call(self, dim, keepdim, std::nullopt, out);
}

template <Operation op>
void define(torch::Library& m) {
  const std::string name = name_of(op) + 1;  // without its underscore
  define_composite(m, name, "(Tensor self, int[1]? dim=None, bool keepdim=False", &reduce<op>, &reduce_out<op>);
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  for_each_operation([&](auto op) {
    constexpr Typing typing = info(op).typing;
    if constexpr (typing == Typing::same || typing == Typing::count || typing == Typing::truth || typing == Typing::log)
      define<op>(m);
  });
}
