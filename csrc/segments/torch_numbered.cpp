#include "torch_numbered.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "numbered.h"
#endif

#include "../core/plan/numbered.h"
#include "../core/torch/explain.h"
#include "../core/torch/results.h"

namespace gpureduce {

namespace {

using at::Tensor;

// The sizes and strides of the dims before `dim`, as of one dim, and whether they can be walked so, and the dims after it are
// contiguous.
struct Layout {
  int64_t outer = 1, outer_stride = 0, inner = 1;
  bool fits = true;

  Layout(const Tensor& x, int64_t dim) {
    for (int64_t d = x.dim() - 1; d > dim; --d) {
      fits &= x.size(d) == 1 || x.stride(d) == inner;
      inner *= x.size(d);
    }
    for (int64_t d = dim - 1; d >= 0; --d) {
      if (x.size(d) == 1) continue;
      fits &= outer == 1 || x.stride(d) == outer_stride * outer;
      if (outer == 1) outer_stride = x.stride(d);
      outer *= x.size(d);
    }
  }
};

bool is_plain(const Tensor& x) { return gpu_of(x.device()) && !x.is_neg() && !x.is_conj(); }

// True if kernels take these offsets, and int32 has the numbers of their segments.
bool are_plain(const Tensor& offsets) {
  return is_plain(offsets) && offsets.is_contiguous() && offsets.numel() <= int64_t{1} << 31;
}

#ifdef GPUREDUCE_WITH_CUDA
template <class Launch>
void run(const Tensor& x, Launch launch) {
  const c10::cuda::CUDAGuard guard(x.device());
  C10_CUDA_CHECK(launch(c10::cuda::getCurrentCUDAStream(x.device().index()).stream()));
}
#endif

}  // namespace

bool copy_numbered(const Tensor& from, int64_t dim, const Tensor& numbers, const Tensor& to, bool zeros) {
  if (!is_plain(from) || !is_plain(to) || from.scalar_type() != to.scalar_type() || !numbers.is_contiguous()) return false;
  const Layout in(from, dim), out(to, dim);
  if (!in.fits || !out.fits) return false;
  const int64_t size = from.itemsize();
  const cuda::CopiedRows call{static_cast<const char*>(from.const_data_ptr()),
                              static_cast<char*>(to.mutable_data_ptr()),
                              numbers.const_data_ptr(),
                              numbers.scalar_type() == at::kLong,
                              zeros,
                              numbers.numel(),
                              from.size(dim),
                              in.outer,
                              in.inner * size,
                              from.stride(dim) * size,
                              to.stride(dim) * size,
                              in.outer_stride * size,
                              out.outer_stride * size};
  if (!cuda::takes(call)) return false;
  if (Explanation* const e = explanation()) e->say(call.str());
#ifdef GPUREDUCE_WITH_CUDA
  else run(from, [&](cudaStream_t stream) { return cuda::copy_rows(call, stream); });
#endif
  return true;
}

Tensor number_entries(const Tensor& offsets, int64_t entries) {
  if (!are_plain(offsets)) return {};
  const Tensor numbers = allocate({entries}, at::kInt, offsets);
  if (Explanation* const e = explanation()) e->say(cuda::explain_numbers(entries));
#ifdef GPUREDUCE_WITH_CUDA
  else
    run(offsets, [&](cudaStream_t stream) {
      return cuda::number_entries(offsets.const_data_ptr(), offsets.scalar_type() == at::kLong, offsets.numel() - 1, entries,
                                  numbers.mutable_data_ptr<int32_t>(), stream);
    });
#endif
  return numbers;
}

Tensor apply_numbered(Formula formula, const Tensor& x, int64_t dim, const Tensor& offsets, const Tensor& g, const Tensor& r,
                      at::ScalarType dtype) {
  const bool elementwise = formula == Formula::softmax_backward;
  const auto is_table = [](const Tensor& t) { return t.is_contiguous() && t.scalar_type() == at::kFloat && is_plain(t); };
  const int64_t count = offsets.numel() - 1;
  if (!is_plain(x) || !x.is_contiguous() || !are_plain(offsets) || count == 0 || !at::isFloatingType(dtype)) return {};
  if (elementwise ? !is_plain(g) || !g.is_contiguous() || g.scalar_type() != x.scalar_type() : !is_table(g)) return {};
  if (!is_table(r)) return {};
  const Layout layout(x, dim);
  cuda::NumberedApply call{formula,
                           x.const_data_ptr(),
                           dtype_of(x.scalar_type(), "an input of dtype"),
                           nullptr,
                           dtype_of(dtype, "a result of dtype"),
                           g.const_data_ptr(),
                           r.const_data_ptr(),
                           offsets.const_data_ptr(),
                           offsets.scalar_type() == at::kLong,
                           nullptr,
                           layout.outer,
                           x.size(dim),
                           layout.inner,
                           count};
  if (!cuda::takes(call)) return {};
  const Tensor result = allocate(x.sizes(), dtype, x);
  call.y = result.mutable_data_ptr();
  Tensor numbers;
  if (!cuda::takes_offsets(call)) {
    numbers = number_entries(offsets, call.entries);
    call.numbers = numbers.const_data_ptr<int32_t>();
  }
  if (Explanation* const e = explanation()) e->say(call.str());
#ifdef GPUREDUCE_WITH_CUDA
  else run(x, [&](cudaStream_t stream) { return cuda::apply_numbered(call, stream); });
#endif
  return result;
}

}  // namespace gpureduce
