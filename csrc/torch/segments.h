// What operators over segments share: checks of offsets, and the call of the kernels.
#pragma once

#include <ATen/ops/diff.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "../cuda/schedule/segment.h"
#endif

#include "../cpu/segment.h"
#include "applied.h"
#include "plumbing.h"

namespace gpureduce {

constexpr const char* kNotLengths =
    ". If these are lengths, the offsets are torch.nn.functional.pad(lengths.cumsum(0), (1, 0))";

// Raises an error that names the first offset that is less than the one before or outside of the dim. Returns true if the
// offsets look like lengths.
inline bool check_values(const Segments& s, const char* function) {
  const char* const hint = s.offset(0) == 0 ? "" : kNotLengths;
  int64_t before = 0, total = 0;
  for (int64_t i = 0; i <= s.count; ++i) {
    const int64_t here = s.offset(i);
    TORCH_CHECK(here >= 0 && here <= s.length, function, "(): offsets: expected each in [0, ", s.length,
                "], the size of dim, but entry ", i, " is ", here, hint);
    TORCH_CHECK(here >= before, function, "(): offsets: expected each to be no less than the one before, but entry ", i, " is ",
                here, " after ", before, hint);
    before = here;
    total += total <= s.length ? here : 0;
  }
  return s.offset(0) != 0 && total == s.length;
}

inline void check_offsets(const char* name, const at::Tensor& offsets, c10::Device device) {
  TORCH_CHECK(offsets.scalar_type() == at::kLong || offsets.scalar_type() == at::kInt, name,
              ": offsets: expected a tensor of int64 or int32, but got ", offsets.scalar_type());
  TORCH_CHECK(offsets.layout() == at::kStrided, name, ": offsets: expected a strided tensor, but got ", offsets.layout());
  TORCH_CHECK(offsets.dim() == 1, name, ": offsets: expected a tensor of one dim, but got ", offsets.dim());
  TORCH_CHECK(offsets.sym_size(0).is_symbolic() || offsets.sym_size(0) >= 1, name,
              ": offsets: expected one more than there are segments, but got none");
  TORCH_CHECK(offsets.device() == device, name, ": offsets: expected to be on ", device, " as the data, but is on ",
              offsets.device());
}

template <class Int>
SizesOf<Int> with_size(const at::Tensor& tensor, int64_t dim, Int size) {
  SizesOf<Int> sizes(sizes_of<Int>(tensor).begin(), sizes_of<Int>(tensor).end());
  sizes[dim] = std::move(size);
  return sizes;
}

// Tensors of offsets or numbers, as the kernels read them.
inline at::Tensor values_of(const at::Tensor& offsets) { return offsets.resolve_neg().contiguous(); }

#ifdef GPUREDUCE_WITH_CUDA
inline void run_cuda(const Segments& segments, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const Device& facts = cuda::facts(device);
  const cuda::SegmentPlan plan = cuda::plan_segments(segments, facts);
  const at::Tensor workspace(at::detail::empty_cuda({plan.workspace_bytes}, at::kByte, device, std::nullopt));
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device.index());
  C10_CUDA_CHECK(cuda::run_segments({segments, plan, facts, workspace.mutable_data_ptr(), {stream, facts.early}}));
}
#endif

// Divides each segment's value by the segment's length; gives 0 for an empty segment.
inline at::Tensor over_lengths(const at::Tensor& grad, const at::Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  at::Tensor lengths = offsets.diff();
  for (int64_t i = 0; i < grad.dim(); ++i)
    if (i != dim) lengths = lengths.unsqueeze(i < dim ? 0 : -1);
  return apply(Formula::ratio, grad, {{}, lengths}, grad.is_complex() ? dtype : c10::toRealValueType(dtype));
}

}  // namespace gpureduce
