// Sums of powers of many tensors, each with the bits of its own linalg_powsum. On a GPU one launch takes hundreds of tensors.
#include <ATen/ATen.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include "many.h"
#endif

#include <map>
#include <vector>

#include "../core/plan/many.h"
#include "../core/torch/explain.h"
#include "../core/torch/results.h"
#include "../core/torch/workspace.h"

namespace gpureduce {

namespace {

at::Tensor powsum(const at::Tensor& self, const at::Scalar& ord, OptionalDtype dtype) {
  static const auto op =
      find<at::Tensor(const at::Tensor&, const at::Scalar&, OptionalDims, bool, OptionalDtype)>("linalg_powsum");
  return op.call(self, ord, std::nullopt, false, dtype);
}

// Tensors by device and dtype, as indices in the list.
using Groups = std::map<std::pair<c10::DeviceIndex, at::ScalarType>, std::vector<size_t>>;

// True if a tensor is dense, so that its order in memory is the contract's order, and no gradient is needed. A ZeroTensor has
// no memory.
bool is_array(const at::Tensor& tensor) {
  // A call is explained under a dispatch mode, which makes every tensor subclass-like.
  const bool is_plain =
      explanation() ? (tensor.key_set() & at::kTensorSubclassLike).empty() : !at::isTensorSubclassLike(tensor);
  return gpu_of(tensor.device()) && is_plain && tensor.layout() == at::kStrided && !tensor._is_zerotensor() &&
         tensor.is_non_overlapping_and_dense() && !(at::GradMode::is_enabled() && tensor.requires_grad()) &&
         !tensor._fw_grad(/*level=*/0).defined();
}

// Element i of a tensor of one dim, without the cost of a view, since there may be hundreds.
at::Tensor element_of(const at::Tensor& all, int64_t i) {
  if (!all.is_cuda()) return all.select(0, i);  // of a call that is explained
  at::Tensor one = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(all.storage()),
                                                            c10::DispatchKeySet(c10::DispatchKey::CUDA), all.dtype());
  one.unsafeGetTensorImpl()->set_sizes_contiguous({});
  one.unsafeGetTensorImpl()->set_storage_offset(i);
  return one;
}

// The results of up to kMostArrays tensors of a group, in one tensor.
at::Tensor run_some(at::TensorList self, const size_t* group, size_t count, at::ScalarType result) {
  const at::Tensor& one = self[group[0]];
  const at::Device device = one.device();
  const at::Tensor all = allocate({static_cast<int64_t>(count)}, result, one);
  std::vector<cuda::Array> list(count);
  for (size_t i = 0; i < count; ++i) list[i] = {self[group[i]].const_data_ptr(), self[group[i]].numel()};
  const cuda::Arrays arrays{list.data(), static_cast<int>(count), dtype_of(one.scalar_type(), "an input of dtype"),
                            dtype_of(result, "a result of dtype")};
  const cuda::ManyPlan plan = cuda::plan_many(arrays, *gpu_of(device));
  if (Explanation* const e = explanation()) {
    e->say("sums of squares of " + std::to_string(count) + " tensors of " + info(arrays.in).name + "\n" + plan.str(arrays));
    return all;
  }
#ifdef GPUREDUCE_WITH_CUDA
  cuda::with_workspace(device, plan.workspace_bytes, [&](void* workspace, cudaStream_t stream) {
    return cuda::run_many({arrays, Map::square, all.mutable_data_ptr(), workspace, {stream, cuda::facts(device).early}}, plan);
  });
#endif
  return all;
}

// The tensors that the kernels for many arrays take. These kernels exist only for power 2, and have no PTX.
Groups groups_of(at::TensorList self, const at::Scalar& ord, OptionalDtype dtype) {
  Groups groups;
  if (ord.isComplex() || ord.toDouble() != 2) return groups;
  for (size_t i = 0; i < self.size(); ++i) {
    if (!is_array(self[i]) || !gpu_of(self[i].device())->native) continue;
    const at::ScalarType type = self[i].scalar_type();
    if (!at::isFloatingType(type) || at::isFloat8Type(type)) continue;
    const at::ScalarType result = result_type(Operation::_powsum_2, type, dtype);
    if (cuda::takes_many(dtype_of(type, "an input of dtype"), dtype_of(result, "a result of dtype"), Map::square))
      groups[{self[i].device().index(), type}].push_back(i);
  }
  return groups;
}

std::vector<at::Tensor> foreach_powsum(at::TensorList self, const at::Scalar& ord, OptionalDtype dtype) {
  std::vector<at::Tensor> results(self.size());
  for (const auto& [key, group] : groups_of(self, ord, dtype)) {
    const at::ScalarType result = result_type(Operation::_powsum_2, key.second, dtype);
    for (size_t first = 0; first < group.size(); first += cuda::kMostArrays) {
      const size_t count = std::min<size_t>(cuda::kMostArrays, group.size() - first);
      const at::Tensor all = run_some(self, group.data() + first, count, result);
      for (size_t i = 0; i < count; ++i) results[group[first + i]] = element_of(all, static_cast<int64_t>(i));
    }
  }
  for (size_t i = 0; i < self.size(); ++i)
    if (!results[i].defined()) results[i] = powsum(self[i], ord, dtype);
  return results;
}

// The same in one tensor, of the results' promoted dtype and on the first result's device.
at::Tensor powsums(at::TensorList self, const at::Scalar& ord, OptionalDtype dtype) {
  TORCH_CHECK(!self.empty(), "_powsums: self: there are no tensors");
  const Groups groups = groups_of(self, ord, dtype);
  if (groups.size() == 1 && groups.begin()->second.size() == self.size() && self.size() <= cuda::kMostArrays)
    return run_some(self, groups.begin()->second.data(), self.size(),
                    result_type(Operation::_powsum_2, self[0].scalar_type(), dtype));
  std::vector<at::Tensor> each = foreach_powsum(self, ord, dtype);
  at::ScalarType common = each[0].scalar_type();
  for (const at::Tensor& one : each) common = at::promoteTypes(common, one.scalar_type());
  for (at::Tensor& one : each) one = one.to(at::TensorOptions().device(each[0].device()).dtype(common));
  return at::stack(each);
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  gpureduce::define_composite(m, "_foreach_powsum(Tensor[] self, Scalar ord=2, *, ScalarType? dtype=None) -> Tensor[]",
                              &gpureduce::foreach_powsum);
  m.def("_powsums(Tensor[] self, Scalar ord=2, *, ScalarType? dtype=None) -> Tensor");  // for torch_reduce.get_total_norm
  gpureduce::composite(m, "_powsums", &gpureduce::powsums);
}
