// Private ops of torch_reduce.distributed: the agreement of ranks.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "expect_agreement.h"
#include "numbers.h"
#endif

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "../core/order.h"
#include "agreement.h"

namespace gpureduce {

namespace {

std::tuple<int64_t, int64_t, int64_t> order() { return {kOrderVersion, kLanes, kChunk}; }

// Integers as a tensor on the device of `like`. The host does not wait for a GPU.
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

int64_t notice_bytes() { return kNoticeWords * sizeof(int64_t); }

// Raises an error unless all ranks' notices, which lie one after the other, agree with `mine`. On a GPU this is a device-side
// assertion, for which the host does not wait. On an error, `report` becomes 1 and the notices. For a GPU it must be pinned.
void expect_agreement(const at::Tensor& notices, const at::Tensor& mine, const at::Tensor& report) {
  const int64_t ranks = static_cast<int64_t>(notices.nbytes()) / notice_bytes();
  const auto are_words = [](const at::Tensor& x) {
    return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % sizeof(int64_t) == 0;
  };
  TORCH_CHECK(static_cast<int64_t>(notices.nbytes()) == ranks * notice_bytes() &&
                  static_cast<int64_t>(mine.nbytes()) == notice_bytes() && report.is_cpu() &&
                  report.scalar_type() == at::kLong && report.numel() == 1 + ranks * kNoticeWords &&
                  mine.device() == notices.device() && are_words(notices) && are_words(mine) && are_words(report) &&
                  (notices.is_cpu() || report.is_pinned()),
              "_expect_agreement: these are no notices and a report of them");
  const auto* all = static_cast<const int64_t*>(notices.const_data_ptr());
  const auto* own = static_cast<const int64_t*>(mine.const_data_ptr());
  auto* const to = report.mutable_data_ptr<int64_t>();
#ifdef GPUREDUCE_WITH_CUDA
  if (notices.is_cuda()) {
    const c10::cuda::CUDAGuard guard(notices.device());
    C10_CUDA_CHECK(cuda::expect_agreement(all, ranks, own, to, c10::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  TORCH_CHECK(notices.is_cpu(), "_expect_agreement: notices must be on the CPU or on an NVIDIA GPU");
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (agree(all + rank * kNoticeWords, own)) continue;
    std::copy_n(all, ranks * kNoticeWords, to + 1);
    *to = 1;
    char text[kDifferenceRoom];
    describe_difference(all, ranks, own, text);
    TORCH_CHECK(false, text);
  }
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  m.def("_order() -> (int version, int lanes, int chunk)", &gpureduce::order);
  m.def("_numbers(int[] values, Tensor like) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &gpureduce::numbers));
  m.def("_notice_bytes() -> int", &gpureduce::notice_bytes);
  m.def("_expect_agreement(Tensor notices, Tensor mine, Tensor(a!) report) -> ()",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &gpureduce::expect_agreement));
}
