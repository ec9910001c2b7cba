// torch.vmap: a batched call is one call of the operator, with one dim more. The bits equal a single call's, since an
// output's bits depend only on its own elements. torch's fallback refuses `out`, as it does for torch.sum.
#pragma once

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/ops/stack.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

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

// A tensor without a batch, as a batch of equal ones in front.
inline at::Tensor repeated(const at::Tensor& x, const c10::SymInt& size) {
  c10::SmallVector<c10::SymInt, kCommonRank> sizes{size};
  sizes.append(x.sym_sizes().begin(), x.sym_sizes().end());
  return x.unsqueeze(0).expand_symint(sizes);
}

// Results whose dim `batch` is the batch.
inline at::Tensor with_batch(at::Tensor result, int64_t batch, int64_t level) {
  return at::functorch::makeBatched(std::move(result), batch, level);
}
template <class... Each>
std::tuple<Each...> with_batch(std::tuple<Each...> results, int64_t batch, int64_t level) {
  return std::apply([&](auto&... each) { return std::tuple(with_batch(std::move(each), batch, level)...); }, results);
}

// The inputs of a call below a level of vmap. They may be undefined.
template <size_t n>
struct Unwrapped {
  std::array<at::Tensor, n> inputs;
  std::array<std::optional<int64_t>, n> where;  // the dim that is the batch
  std::optional<size_t> first;                  // the first input with a batch

  Unwrapped(const std::array<at::Tensor, n>& given, int64_t level) {
    for (size_t i = 0; i < n; ++i) {
      std::tie(inputs[i], where[i]) = at::functorch::unwrapTensorAtLevel(given[i], level);
      if (where[i] && !first) first = i;
    }
  }

  c10::SymInt size() const { return inputs[*first].sym_size(*where[*first]); }

  // The inputs of one element of the batch.
  std::array<at::Tensor, n> at(int64_t element) const {
    std::array<at::Tensor, n> own = inputs;
    for (size_t i = 0; i < n; ++i)
      if (where[i]) own[i] = inputs[i].select(*where[i], element);
    return own;
  }
};

inline at::Tensor stacked(const std::vector<at::Tensor>& each) { return at::stack(each); }
inline std::tuple<at::Tensor, at::Tensor> stacked(const std::vector<std::tuple<at::Tensor, at::Tensor>>& each) {
  std::vector<at::Tensor> first, second;
  for (const auto& [one, other] : each) {
    first.push_back(one);
    second.push_back(other);
  }
  return {at::stack(first), at::stack(second)};
}

// A call per element of a batch, where one call cannot take all: `call(element)` makes one. `subject` begins the error for an
// empty batch.
template <class Call>
auto call_per_element(const std::string& subject, const c10::SymInt& size, int64_t level, Call call) {
  std::vector<decltype(call(int64_t{0}))> each;
  for (int64_t element = 0; element < size.expect_int(); ++element) each.push_back(call(element));
  TORCH_CHECK(!each.empty(), subject, ": a batch of none has no result");
  return with_batch(stacked(each), 0, level);
}

// A batch of reductions over dims: `call(inputs, dims, keepdim)` makes a call whose dims skip the batch. One input keeps its
// batch where it lies, without a copy or a view; several inputs, which are broadcast, have it in front.
template <size_t n, class Call>
auto batched_reduction(const char* name, const std::array<at::Tensor, n>& given, OptionalDims dim, bool keepdim, Call call) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(name);
  auto [inputs, where, first] = Unwrapped<n>(given, level);
  if (!first) return call(inputs, dim, keepdim);

  int64_t rank = 0;
  for (size_t i = 0; i < n; ++i) rank = std::max(rank, inputs[i].dim() - where[i].has_value());
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
