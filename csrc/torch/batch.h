// torch.vmap: a batched call is one call of the operator, with one dim more. The bits equal a single call's, since an
// output's bits depend only on its own elements. torch's fallback refuses `out`, as it does for torch.sum.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>

#include <array>
#include <tuple>

#include "backend.h"

namespace gpureduce {

inline int64_t current_level(const char* name) {
  const auto layer = at::functorch::maybeCurrentDynamicLayer();
  TORCH_CHECK(layer.has_value(), name, "(): an input has escaped from inside a function being vmapped");
  return layer->layerId();
}

// The tensor with its batch in front; or as it is, if it has none.
struct Batched {
  at::Tensor value;
  bool batched;
};
inline Batched in_front(const at::Tensor& x, int64_t level) {
  if (!x.defined()) return {x, false};
  auto [value, dim] = at::functorch::unwrapTensorAtLevel(x, level);
  return {dim ? value.movedim(*dim, 0) : value, dim.has_value()};
}

// Results whose dim `batch` is the batch.
inline at::Tensor with_batch(at::Tensor result, int64_t batch, int64_t level) {
  return at::functorch::makeBatched(std::move(result), batch, level);
}
template <class... Each>
std::tuple<Each...> with_batch(std::tuple<Each...> results, int64_t batch, int64_t level) {
  return std::apply([&](auto&... each) { return std::tuple(with_batch(std::move(each), batch, level)...); }, results);
}

// A batch of reductions over dims: `call(inputs, dims, keepdim)` makes a call whose dims skip the batch. One input keeps its
// batch where it lies, without a copy or a view; several inputs, which are broadcast, have it in front.
template <size_t n, class Call>
auto batched_reduction(const char* name, std::array<at::Tensor, n> inputs, OptionalDims dim, bool keepdim, Call call) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(name);
  std::array<std::optional<int64_t>, n> where;
  int64_t rank = 0;
  bool batched = false;
  for (size_t i = 0; i < n; ++i) {
    std::tie(inputs[i], where[i]) = at::functorch::unwrapTensorAtLevel(inputs[i], level);
    rank = std::max(rank, inputs[i].dim() - where[i].has_value());
    batched |= where[i].has_value();
  }
  if (!batched) return call(inputs, dim, keepdim);

  const int64_t batch = n == 1 ? *where[0] : 0;
  const DimMask reduce = reduced_dims(dim, rank);
  c10::SmallVector<int64_t, kCommonRank> dims;
  for (int64_t d = 0; d < rank; ++d)
    if (reduce[d]) dims.push_back(d + (d >= batch));
  if (rank == 0) {  // a batch of scalars: an empty list of dims would mean all dims
    dims.push_back(1);
    keepdim = false;
  }
  for (size_t i = 0; i < n; ++i) {
    if (!where[i]) continue;
    if (n > 1) inputs[i] = inputs[i].movedim(*where[i], 0);
    while (inputs[i].dim() <= std::max<int64_t>(rank, 1)) inputs[i] = inputs[i].unsqueeze(1);
  }
  const auto before = std::count_if(dims.begin(), dims.end(), [&](int64_t d) { return d < batch; });
  return with_batch(call(inputs, at::IntArrayRef(dims), keepdim), keepdim ? batch : batch - before, level);
}

}  // namespace gpureduce
