// Private ops of torch_reduce.distributed.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/agreement.h"
#include "cuda/logsums.h"
#include "cuda/numbers.h"
#endif

#include <algorithm>
#include <tuple>

#include "agreement.h"
#include "exponential.h"
#include "finish.h"
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

int64_t notice_bytes() { return kNoticeWords * sizeof(int64_t); }

// Raises an error unless all ranks' notices, one after the other, agree with `mine`: on a GPU as a device-side assertion, for
// which the host does not wait. `report` is then 1 and the notices; it is pinned for those of a GPU.
void expect_agreement(const at::Tensor& notices, const at::Tensor& mine, const at::Tensor& report) {
  const int64_t ranks = static_cast<int64_t>(notices.nbytes()) / notice_bytes();
  TORCH_CHECK(static_cast<int64_t>(mine.nbytes()) == notice_bytes() && report.is_cpu() && report.scalar_type() == at::kLong &&
                  report.numel() == 1 + ranks * kNoticeWords && mine.device() == notices.device(),
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

// --- pairs of logsumexp: complex numbers whose parts are those of the accumulator, as _logsum gives them -------------------

void check_pairs(const char* name, const at::Tensor& pairs) {
  TORCH_CHECK(pairs.is_complex() && pairs.scalar_type() != at::kComplexHalf, name,
              "(): pairs are complex64 or complex128, not ", pairs.scalar_type());
}

// Calls f with a 0 of the type of a pair's parts.
template <class F>
void with_part(const at::Tensor& pairs, F f) {
  if (pairs.scalar_type() == at::kComplexFloat) f(float{});
  else f(double{});
}

template <class T>
LogSum<T>* pairs_of(const at::Tensor& pairs) {
  return reinterpret_cast<LogSum<T>*>(const_cast<void*>(pairs.const_data_ptr()));
}

at::Tensor join_logsums_meta(const at::Tensor& left, const at::Tensor& right) {
  check_pairs("_join_logsums", left);
  TORCH_CHECK(
      left.scalar_type() == right.scalar_type() && left.device() == right.device() && left.sym_sizes() == right.sym_sizes(),
      "_join_logsums(): left and right must be alike");
  return at::empty_symint(left.sym_sizes(), left.options());
}

// Pairs joined one by one, each left one with its right neighbour.
at::Tensor join_logsums(const at::Tensor& given_left, const at::Tensor& given_right) {
  const at::Tensor joined = join_logsums_meta(given_left, given_right);
  const at::Tensor left = given_left.contiguous().resolve_conj(), right = given_right.contiguous().resolve_conj();
  with_part(left, [&](auto part) {
    using T = decltype(part);
    const LogSum<T>*a = pairs_of<T>(left), *b = pairs_of<T>(right);
    LogSum<T>* const to = pairs_of<T>(joined);
#ifdef GPUREDUCE_WITH_CUDA
    if (left.is_cuda()) {
      const c10::cuda::CUDAGuard guard(left.device());
      C10_CUDA_CHECK(cuda::join_logsums(a, b, to, left.numel(), c10::cuda::getCurrentCUDAStream()));
      return;
    }
#endif
    for (int64_t i = 0; i < left.numel(); ++i) to[i] = a[i] + b[i];
  });
  return joined;
}

at::Tensor finish_logsums_meta(const at::Tensor& pairs) {
  check_pairs("_finish_logsums", pairs);
  return at::empty_symint(pairs.sym_sizes(), pairs.options().dtype(at::kDouble));
}

// The logarithms that pairs stand for, in float64.
at::Tensor finish_logsums(const at::Tensor& given) {
  const at::Tensor results = finish_logsums_meta(given), pairs = given.contiguous().resolve_conj();
  double* const to = results.mutable_data_ptr<double>();
  with_part(pairs, [&](auto part) {
    using T = decltype(part);
    const LogSum<T>* const from = pairs_of<T>(pairs);
#ifdef GPUREDUCE_WITH_CUDA
    if (pairs.is_cuda()) {
      const c10::cuda::CUDAGuard guard(pairs.device());
      C10_CUDA_CHECK(cuda::finish_logsums(from, to, pairs.numel(), c10::cuda::getCurrentCUDAStream()));
      return;
    }
#endif
    for (int64_t i = 0; i < pairs.numel(); ++i) to[i] = finished(from[i], Finish::logarithm, 1);
  });
  return results;
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  m.def("_order() -> (int version, int lanes, int chunk)", &gpureduce::order);
  m.def("_numbers(int[] values, Tensor like) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(gpureduce::numbers)));
  m.def("_notice_bytes() -> int", &gpureduce::notice_bytes);
  m.def("_expect_agreement(Tensor notices, Tensor mine, Tensor(a!) report) -> ()",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(gpureduce::expect_agreement)));
  m.def("_join_logsums(Tensor left, Tensor right) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("_finish_logsums(Tensor pairs) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(gpureduce, CPU, m) {
  m.impl("_join_logsums", &gpureduce::join_logsums);
  m.impl("_finish_logsums", &gpureduce::finish_logsums);
}
#ifdef GPUREDUCE_WITH_CUDA
TORCH_LIBRARY_IMPL(gpureduce, CUDA, m) {
  m.impl("_join_logsums", &gpureduce::join_logsums);
  m.impl("_finish_logsums", &gpureduce::finish_logsums);
}
#endif
TORCH_LIBRARY_IMPL(gpureduce, Meta, m) {
  m.impl("_join_logsums", &gpureduce::join_logsums_meta);
  m.impl("_finish_logsums", &gpureduce::finish_logsums_meta);
}
