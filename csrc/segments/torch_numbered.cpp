#include "torch_numbered.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "numbered.h"
#endif

#include "../core/torch/results.h"

namespace gpureduce {

#ifdef GPUREDUCE_WITH_CUDA

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

bool is_plain(const Tensor& x) { return x.is_cuda() && !x.is_neg() && !x.is_conj(); }

// True if kernels take these offsets, and int32 has the numbers of their segments.
bool are_plain(const Tensor& offsets) {
  return is_plain(offsets) && offsets.is_contiguous() && offsets.numel() <= int64_t{1} << 31;
}

bool done(cudaError_t error) {
  if (error == cudaErrorNotSupported) return false;
  C10_CUDA_CHECK(error);
  return true;
}

cudaStream_t stream_of(const Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.device().index()); }

}  // namespace

bool copy_numbered(const Tensor& from, int64_t dim, const Tensor& numbers, const Tensor& to, bool zeros) {
  if (!is_plain(from) || !is_plain(to) || from.scalar_type() != to.scalar_type() || !numbers.is_contiguous()) return false;
  const Layout in(from, dim), out(to, dim);
  if (!in.fits || !out.fits) return false;
  const int64_t size = from.itemsize();
  const c10::cuda::CUDAGuard guard(from.device());
  return done(cuda::copy_rows(
      {static_cast<const char*>(from.const_data_ptr()), static_cast<char*>(to.mutable_data_ptr()), numbers.const_data_ptr(),
       numbers.scalar_type() == at::kLong, zeros, numbers.numel(), from.size(dim), in.outer, in.inner * size,
       from.stride(dim) * size, to.stride(dim) * size, in.outer_stride * size, out.outer_stride * size},
      stream_of(from)));
}

Tensor number_entries(const Tensor& offsets, int64_t entries) {
  const int64_t count = offsets.numel() - 1;
  if (!are_plain(offsets)) return {};
  const Tensor numbers = allocate({entries}, at::kInt, offsets);
  const c10::cuda::CUDAGuard guard(offsets.device());
  C10_CUDA_CHECK(cuda::number_entries(offsets.const_data_ptr(), offsets.scalar_type() == at::kLong, count, entries,
                                      numbers.mutable_data_ptr<int32_t>(), stream_of(offsets)));
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
  const c10::cuda::CUDAGuard guard(x.device());
  C10_CUDA_CHECK(cuda::apply_numbered(call, stream_of(x)));
  return result;
}

#else

bool copy_numbered(const at::Tensor&, int64_t, const at::Tensor&, const at::Tensor&, bool) { return false; }
at::Tensor number_entries(const at::Tensor&, int64_t) { return {}; }
at::Tensor apply_numbered(Formula, const at::Tensor&, int64_t, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                          at::ScalarType) {
  return {};
}

#endif

}  // namespace gpureduce
