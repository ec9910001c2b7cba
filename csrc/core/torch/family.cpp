// The functions without dtype=. Each calls an operation of the table (operation.h), which has gradients, vmap and the rest.
#include <torch/library.h>

#include "dispatch.h"

namespace gpureduce {

namespace {

// torch.any and torch.all reduce no dims if the list of dims is empty. torch's other functions, and our operations, reduce all.
bool reduces_nothing(Operation op, OptionalDims dim) { return info(op).typing == Typing::truth && dim && dim->empty(); }

at::Tensor reduce(Which which, const at::Tensor& self, OptionalDims dim, bool keepdim) {
  const auto& handle = functional(which);
  if (reduces_nothing(which.op, dim)) return handle.call(self.unsqueeze(-1), at::IntArrayRef(-1), false, std::nullopt);
  return handle.call(self, dim, keepdim, std::nullopt);
}

at::Tensor& reduce_out(Which which, const at::Tensor& self, OptionalDims dim, bool keepdim, at::Tensor& out) {
  const auto& handle = out_variant(which);
  if (reduces_nothing(which.op, dim)) return handle.call(self.unsqueeze(-1), at::IntArrayRef(-1), false, std::nullopt, out);
  return handle.call(self, dim, keepdim, std::nullopt, out);
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  for (const Operation op : kOperations) {
    const Typing typing = info(op).typing;
    if (typing == Typing::same || typing == Typing::count || typing == Typing::truth || typing == Typing::log)
      define_composite(m, name_of(op) + 1, "(Tensor self, int[1]? dim=None, bool keepdim=False", kernel_of(op, &reduce),
                       kernel_of(op, &reduce_out));  // + 1: without its underscore
  }
}
