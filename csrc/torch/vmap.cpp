// torch.vmap: a batched call is one call of the op, with dims that skip the batch dim. There is no copy and no loop. The bits
// equal those of single calls, since an output's bits depend only on its own elements. torch's fallback refuses `out`, as it
// does for torch.sum.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <torch/library.h>

#include "backend.h"

namespace gpureduce {

namespace {

namespace functorch = at::functorch;

template <Operation op>
at::Tensor reduce_batched(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const auto layer = functorch::maybeCurrentDynamicLayer();
  TORCH_CHECK(layer.has_value(), name_of(op), ": the input has escaped from inside a function being vmapped");
  auto [value, batch_dim] = functorch::unwrapTensorAtLevel(self, layer->layerId());
  if (!batch_dim) return functional<op>().call(self, dim, keepdim, dtype);

  const int64_t rank = value.dim() - 1, batch = *batch_dim;
  const DimMask reduce = reduced_dims(dim, rank);
  c10::SmallVector<int64_t, kCommonRank> dims;
  for (int64_t d = 0; d < rank; ++d)
    if (reduce[d]) dims.push_back(d + (d >= batch));
  if (rank == 0) {  // a batch of scalars: an empty list of dims would mean all dims
    value = value.unsqueeze(1);
    dims.push_back(1);
    keepdim = false;
  }
  const auto before = std::count_if(dims.begin(), dims.end(), [&](int64_t d) { return d < batch; });
  at::Tensor result = functional<op>().call(value, at::IntArrayRef(dims), keepdim, dtype);
  return functorch::makeBatched(std::move(result), keepdim ? batch : batch - before, layer->layerId());
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_IMPL(gpureduce, FuncTorchBatched, m) {
  gpureduce::for_each_operation([&](auto op) { m.impl(name_of(op), TORCH_FN(gpureduce::reduce_batched<op>)); });
}
