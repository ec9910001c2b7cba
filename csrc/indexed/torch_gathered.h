// The operators of torch_gathered.cpp, for those that are made of them.
#pragma once

#include "../core/torch/plumbing.h"

namespace gpureduce::gathered {

using Function = at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&, const OptionalTensor&,
                            const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, int64_t,
                            OptionalDtype);

template <Operation op>
constexpr const char* kName = op == Operation::sum     ? "_gather_sum"
                              : op == Operation::mean  ? "_gather_mean"
                              : op == Operation::_amax ? "_gather_amax"
                                                       : "_gather_amin";

template <Operation op>
GPUREDUCE_HANDLE(gather, kName<op>, Function)

// A list of edges, sorted by outputs or by rows. Tensors may be undefined.
struct Edges { at::Tensor rows, offsets, edges; };

// Rows of `data` along `dim`, weighted and summed along `forward`.
template <Operation op = Operation::sum>
at::Tensor along(const at::Tensor& data, const at::Tensor& weight, const Edges& forward, const Edges& back, int64_t dim,
                 OptionalDtype dtype) {
  return gather<op>().call(data, forward.rows, optional(forward.offsets), optional(weight), optional(forward.edges),
                           optional(back.rows), optional(back.offsets), optional(back.edges), dim, dtype);
}

}  // namespace gpureduce::gathered
