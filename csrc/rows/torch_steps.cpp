// Private ops for rows that are cut over ranks: the steps of functions that keep their input's shape, one at a time.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "../core/plan/rows.h"
#include "../core/torch/explain.h"
#include "cpu.h"
#include "torch.h"

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "rows.h"
#endif

#include <iterator>
#include <string_view>
#include <tuple>

namespace gpureduce::rows {

namespace {

constexpr const char* kFunctions[] = {
#define GPUREDUCE_ROW_FUNCTION(name) #name,
    GPUREDUCE_ROW_FUNCTIONS(GPUREDUCE_ROW_FUNCTION)
#undef GPUREDUCE_ROW_FUNCTION
};
constexpr const char* kSteps[] = {"addends", "second_addends", "weight_addends", "applied"};

template <class Enum, size_t n>
Enum named(std::string_view name, const char* const (&names)[n], const char* function, const char* what) {
  for (size_t i = 0; i < n; ++i)
    if (name == names[i]) return static_cast<Enum>(i);
  TORCH_CHECK_VALUE(false, function, ": there is no ", what, " '", name, "'");
}

int64_t count_of(const RowStepCall& step) { return step.call.rows * step.call.length; }
int64_t count_of(const RowFinishCall& call) { return call.rows; }
const char* kernel_of(const RowStepCall&) { return "step"; }
const char* kernel_of(const RowFinishCall&) { return "finish"; }

template <class Call>
void run_call(const Call& call, const Tensor& like) {
  if (Explanation* const e = explanation())
    return e->tell(
        like.device(), "", "row", [&](const Device&) { return cuda::explain_steps(kernel_of(call), count_of(call)); },
        [&] { cpu::run(call); });
#ifdef GPUREDUCE_WITH_CUDA
  if (like.is_cuda()) {
    const c10::cuda::CUDAGuard guard(like.device());
    C10_CUDA_CHECK(cuda::run_rows(call, c10::cuda::getCurrentCUDAStream()));
    return;
  }
#endif
  cpu::run(call);
}

// What a step computes with, and its numbers have.
void check_computed(const char* name, at::ScalarType computed) {
  TORCH_CHECK(computed == at::kFloat || computed == at::kDouble, name, ": expected to compute in float32 or float64, but got ",
              computed);
}

// A number for each row, as kernels read them. Undefined if none is given.
template <class Sizes>
Tensor numbers_of(const char* name, const OptionalTensor& given, const Tensor& like, const Sizes& count, at::ScalarType dtype) {
  if (!tensor_of(given).defined()) return {};
  TORCH_CHECK(given->device() == like.device(), name, ": expected numbers of rows on ", like.device(), ", but got some on ",
              given->device());
  TORCH_CHECK(given->numel() == count, name, ": expected ", count, " numbers of rows, but got ", given->numel());
  return plain(given->to(dtype));
}

// The dims of rows. Raises an error unless the operands fit x: the gradient has its sizes, and weights have its last dims, or 1
// where they are the same along a dim.
DimMask check_step(const Tensor& x, at::IntArrayRef dims, const Tensor& grad, std::array<Tensor, 2> weights,
                   at::ScalarType computed, at::ScalarType dtype) {
  constexpr const char* kName = "_row_step";
  check_computed(kName, computed);
  TORCH_CHECK(at::isFloatingType(dtype), kName, ": dtype: expected a floating one, but got ", dtype);
  DimMask across(x.dim(), false);
  for (int64_t d : dims) across[c10::maybe_wrap_dim(d, x.dim(), /*wrap_scalar=*/false)] = true;
  const auto on_device = [&](const Tensor& t) {
    TORCH_CHECK(t.device() == x.device(), kName, ": expected all tensors on ", x.device(), ", but got one on ", t.device());
  };
  if (grad.defined()) {
    on_device(grad);
    TORCH_CHECK(grad.sizes() == x.sizes(), kName, ": grad: expected the size ", x.sizes(), ", but got ", grad.sizes());
  }
  for (const Tensor& w : weights) {
    if (!w.defined()) continue;
    on_device(w);
    const int64_t first = x.dim() - w.dim();
    bool fits = first >= 0;
    for (int64_t d = 0; fits && d < x.dim(); ++d)
      fits = d < first ? !across[d] : w.size(d - first) == 1 || w.size(d - first) == x.size(d);
    TORCH_CHECK(fits, kName, ": weights: expected the last sizes of ", x.sizes(), ", but got ", w.sizes());
  }
  return across;
}

Tensor row_step_meta(const Tensor& x, std::string_view, std::string_view, at::IntArrayRef, const OptionalTensor&,
                     const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                     const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, at::ScalarType,
                     at::ScalarType dtype) {
  return new_result(x, dtype);
}

// What a step makes of each element of x, whose rows have the dims `dims`, rounded once to `dtype`. Numbers come from
// _finish_rows. A target is the index of a row's target among the elements that are here, or a negative number.
Tensor row_step(const Tensor& x, std::string_view step, std::string_view function, at::IntArrayRef dims,
                const OptionalTensor& grad, const OptionalTensor& weight, const OptionalTensor& bias,
                const OptionalTensor& target, const OptionalTensor& mean, const OptionalTensor& r,
                const OptionalTensor& first_share, const OptionalTensor& share, at::ScalarType computed, at::ScalarType dtype) {
  const DimMask across = check_step(x, dims, tensor_of(grad), {tensor_of(weight), tensor_of(bias)}, computed, dtype);
  const Tensor y = new_result(x, dtype);
  RowStepCall call{};
  call.step = named<RowStep>(step, kSteps, "_row_step", "step");
  call.call = make_call(named<RowFunction>(function, kFunctions, "_row_step", "function"),
                        {x, tensor_of(grad), tensor_of(weight), tensor_of(bias), y}, across, "_row_step");
  call.call.wide = computed == at::kDouble;
  std::array<Tensor, 4> numbers;
  const auto data_of = [&](size_t i, const OptionalTensor& given) -> void* {
    numbers[i] = numbers_of("_row_step", given, x, call.call.rows, computed);
    return numbers[i].defined() ? numbers[i].data_ptr() : nullptr;
  };
  call.call.mean = data_of(0, mean);
  call.call.r = data_of(1, r);
  call.first_share = data_of(2, first_share);
  call.share = data_of(3, share);
  const Tensor index = numbers_of("_row_step", target, x, call.call.rows, at::kLong);
  if (index.defined()) call.call.loss.targets.classes = index.const_data_ptr<int64_t>();
  if (y.numel() > 0) run_call(call, x);
  return y;
}

std::tuple<Tensor, Tensor> finish_sums_meta(const Tensor& sum, const OptionalTensor&, std::string_view, int64_t, double,
                                            at::ScalarType dtype) {
  const auto empty = [&] { return at::empty_symint(sum.sym_sizes(), sum.options().dtype(dtype)); };
  return {empty(), empty()};
}

// The numbers of rows of `length` elements from their sums: mean and r, m and 1 / S or log(S), or the shares of a backward
// pass. What it gives as the mean of a layer_norm is what has to be added to c (rows.h).
std::tuple<Tensor, Tensor> finish_sums(const Tensor& sum, const OptionalTensor& other, std::string_view function,
                                       int64_t length, double eps, at::ScalarType dtype) {
  check_computed("_finish_rows", dtype);
  const auto results = finish_sums_meta(sum, other, function, length, eps, dtype);
  RowFinishCall call{};
  call.function = named<RowFunction>(function, kFunctions, "_finish_rows", "function");
  const Tensor sums = plain(sum.to(dtype)), others = numbers_of("_finish_rows", other, sum, sum.numel(), dtype);
  TORCH_CHECK(call.function != RowFunction::layer_norm || others.defined(), "_finish_rows: a layer_norm has two sums");
  call.wide = dtype == at::kDouble;
  call.rows = sums.numel();
  call.length = length;
  call.eps = eps;
  call.sum = sums.const_data_ptr();
  call.other = others.defined() ? others.const_data_ptr() : nullptr;
  call.first = std::get<0>(results).data_ptr();
  call.second = std::get<1>(results).data_ptr();
  if (call.rows > 0) run_call(call, sum);
  return results;
}

}  // namespace

}  // namespace gpureduce::rows

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define_operator<rows::row_step, rows::row_step_meta>(
      m,
      "_row_step(Tensor x, str step, str function, int[] dims, Tensor? grad=None, Tensor? weight=None, Tensor? bias=None, "
      "Tensor? target=None, Tensor? mean=None, Tensor? r=None, Tensor? first_share=None, Tensor? share=None, *, ScalarType "
      "computed, ScalarType dtype) -> Tensor");
  define_operator<rows::finish_sums, rows::finish_sums_meta>(
      m, "_finish_rows(Tensor sum, Tensor? other, str function, int length, float eps, ScalarType dtype) -> (Tensor, Tensor)");
}
