// Private ops of torch_reduce.distributed.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/numbers.h"
#endif

#include <algorithm>
#include <tuple>

#include "order.h"

namespace gpureduce {

namespace {

std::tuple<int64_t, int64_t, int64_t> order() { return {kOrderVersion, kLanes, kChunk}; }

// Integers as a tensor on the device of `like`, for which the host does not wait.
at::Tensor numbers(at::IntArrayRef values, const at::Tensor& like) {
  const auto count = static_cast<int64_t>(values.size());
  at::Tensor result = at::empty({count}, at::TensorOptions(like.device()).dtype(at::kLong));
#ifdef GPUREDUCE_WITH_CUDA
  if (like.is_cuda()) {
    const c10::cuda::CUDAGuard guard(like.device());
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(cuda::write_numbers(values.data(), count, result.mutable_data_ptr<int64_t>(), stream));
    return result;
  }
#endif
  TORCH_CHECK(like.is_cpu(), "_numbers: like: it must be on the CPU or on an NVIDIA GPU, but is on ", like.device());
  std::copy(values.begin(), values.end(), result.mutable_data_ptr<int64_t>());
  return result;
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  m.def("_order() -> (int version, int lanes, int chunk)", &gpureduce::order);
  m.def("_numbers(int[] values, Tensor like) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(gpureduce::numbers)));
}
