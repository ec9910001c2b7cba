// Rounding to float8 with a scale per block: of a tensor, of silu(x) * y, and of an rms_norm behind a residual. On a GPU one
// kernel takes all of a row; what it does not take is composed of other operators, with the same bits.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "../core/plan/rows.h"
#include "../core/torch/applied.h"
#include "../core/torch/explain.h"
#include "../core/torch/gradient.h"
#include "../core/torch/plumbing.h"
#include "cpu.h"
#include "torch.h"

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "rows.h"
#endif

#include <numeric>

namespace gpureduce::rows {

namespace {

using at::ScalarType;

// Functions are told the elements of a block that share a scale, or 0 for a row; and the dtypes of scales and values.

GPUREDUCE_HANDLE(quantize_operator, "quantize", TwoTensors(const Tensor&, int64_t, ScalarType, ScalarType))
GPUREDUCE_HANDLE(norm_quantize_operator, "_rms_norm_quantize",
                 ThreeTensors(const Tensor&, c10::SymIntArrayRef, const OptionalTensor&, std::optional<double>,
                              const OptionalTensor&, double, int64_t, ScalarType, ScalarType))

void check_alike(const char* name, const char* argument, const Tensor& x, const Tensor& input) {
  check_device(name, argument, x, input.device(), "input");
  TORCH_CHECK(x.sym_sizes() == input.sym_sizes(), name, argument, ": expected the size ", input.sym_sizes(),
              " of input, but got ", x.sym_sizes());
}

// New values and scales for an input. Raises an error unless it can be rounded so.
TwoTensors new_float8(const char* name, const Tensor& input, int64_t block, ScalarType scale, ScalarType dtype) {
  const ScalarType t = input.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(t == at::kHalf || t == at::kBFloat16 || t == at::kFloat, name,
                              "(): input: expected float16, bfloat16 or float32, but got ", t);
  TORCH_CHECK(input.dim() > 0, name, "(): input: expected at least one dim");
  TORCH_CHECK(block == 0 || block == 32 || block == 64 || block == 128, name,
              "(): block: expected 32, 64, 128, or 0 for the row, but got ", block);
  TORCH_CHECK(scale == at::kFloat || scale == at::kFloat8_e8m0fnu, name,
              "(): scale: expected float32 or float8_e8m0fnu, but got ", scale);
  TORCH_CHECK(dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2, name,
              "(): dtype: expected float8_e4m3fn or float8_e5m2, but got ", dtype);
  c10::SmallVector<c10::SymInt, kCommonRank> sizes(input.sym_sizes().begin(), input.sym_sizes().end());
  const Tensor values = at::empty_symint(sizes, input.options().dtype(dtype));
  sizes.back() = block ? (sizes.back() + (block - 1)) / block : c10::SymInt(1);
  return {values, at::empty_symint(sizes, input.options().dtype(scale))};
}

// Rows that registers hold, where a row is too long and its blocks may be taken apart.
Tensor regrouped(const Tensor& x, int64_t block) {
  const int64_t n = x.size(-1);
  if (block == 0 || n <= cuda::kMostQuantized || n % block != 0) return x;
  return x.unflatten(-1, {-1, block * std::gcd(n / block, cuda::kMostQuantized / block)});
}

QuantizeCall call_of(const char* name, Rounded what, const Operands& operands, const TwoTensors& to, int64_t block) {
  QuantizeCall call{make_call(RowFunction::rms_norm, operands, one_dim(operands[kRowX], -1), name, false)};
  call.what = what;
  call.values = std::get<0>(to).data_ptr();
  call.scales = std::get<1>(to).data_ptr();
  call.dtype = std::get<0>(to).scalar_type() == at::kFloat8_e5m2 ? DType::Float8_e5m2 : DType::Float8_e4m3fn;
  call.powers = std::get<1>(to).scalar_type() == at::kFloat8_e8m0fnu;
  call.block = block;
  return call;
}

// Runs a call if a kernel of a GPU takes it.
bool ran_on_gpu(const QuantizeCall& call, const Tensor& like) {
  const Device* const gpu = gpu_of(like.device());
  if (!gpu) return false;
  const cuda::QuantizePlan plan = cuda::plan_quantize(call, *gpu);
  if (plan.threads == 0) return false;
  if (Explanation* const e = explanation()) {
    e->tell(like.device(), cuda::text_of(call), "row", [&](const Device&) { return plan.str(call); }, [] {});
    return true;
  }
#ifdef GPUREDUCE_WITH_CUDA
  const c10::cuda::CUDAGuard guard(like.device());
  C10_CUDA_CHECK(cuda::run_rows(call, plan, *gpu, c10::cuda::getCurrentCUDAStream()));
#endif
  return true;
}

// --- quantize ---------------------------------------------------------------------------------------------------------------

TwoTensors quantize_meta(const Tensor& input, int64_t block, ScalarType scale, ScalarType dtype) {
  return new_float8("quantize", input, block, scale, dtype);
}

// The same by elementwise operators, for GPUs, whose kernel takes whole vectors of rows that are not too long.
TwoTensors quantize_composed(const Tensor& input, int64_t block, ScalarType scale, ScalarType dtype) {
  TwoTensors to = quantize_meta(input, block, scale, dtype);
  const auto& [values, scales] = to;
  const int64_t n = input.size(-1), size = block ? block : n, rest = (size - n % size) % size;
  const Tensor x = at::constant_pad_nd(input.to(at::kFloat), {0, rest}).unflatten(-1, {-1, size});
  const Tensor largest = at::amax(at::abs(x), -1, true);
  Tensor found = divided(largest, number_like(dtype == at::kFloat8_e5m2 ? 57344 : 448, largest));
  found = at::where(at::isfinite(largest), at::clamp_min(found, 0x1p-126), NAN);
  if (scale == at::kFloat8_e8m0fnu) {
    const Tensor bits = (found.view(at::kInt) + 0x7fffff).bitwise_and(-0x800000);
    found = at::where(at::isfinite(found), bits.view(at::kFloat), NAN);
  }
  scales.copy_(found.squeeze(-1));
  values.copy_(divided(x, found).flatten(-2).narrow(-1, 0, n));
  return to;
}

TwoTensors quantize(const Tensor& input, int64_t block, ScalarType scale, ScalarType dtype) {
  TwoTensors to = quantize_meta(input, block, scale, dtype);
  if (input.numel() == 0) {
    std::get<1>(to).copy_(at::full({}, 0x1p-126, input.options().dtype(at::kFloat)));
    return to;
  }
  const Tensor x = input.contiguous();
  const QuantizeCall call = call_of("quantize", Rounded::elements, {regrouped(x, block), {}, {}, {}, {}}, to, block);
  if (ran_on_gpu(call, x)) return to;
  if (gpu_of(x.device())) return quantize_composed(x, block, scale, dtype);
  if (Explanation* const e = explanation())
    e->tell(x.device(), cuda::text_of(call), "row", [](const Device&) { return std::string(); }, [&] { cpu::run(call); });
  else cpu::run(call);
  return to;
}

TwoTensors quantize_batched(const Tensor& input, int64_t block, ScalarType scale, ScalarType dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level("quantize");
  const auto [value, batched] = in_front(input, level);
  if (!batched) return quantize_operator().call(value, block, scale, dtype);
  TORCH_CHECK(value.dim() > 1, "quantize(): input: expected at least one dim");
  return with_batch(quantize_operator().call(value, block, scale, dtype), 0, level);
}

// --- silu(x) * y ------------------------------------------------------------------------------------------------------------

void check_other(const Tensor& other, const Tensor& input) {
  TORCH_CHECK(other.scalar_type() == input.scalar_type(), "silu_mul(): other: expected the dtype ", input.scalar_type(),
              " of input, but got ", other.scalar_type());
  check_alike("silu_mul", "(): other", other, input);
}

Tensor silu_mul(const Tensor& input, const Tensor& other) {
  const ScalarType t = input.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(t) && !at::isFloat8Type(t),
                              "silu_mul(): input: expected float16, bfloat16, float32 or float64, but got ", t);
  check_other(other, input);
  return apply(Formula::silu, input, {other}, t).contiguous();
}

TwoTensors silu_quantize_meta(const Tensor& input, const Tensor& other, int64_t block, ScalarType scale, ScalarType dtype) {
  check_other(other, input);
  return new_float8("silu_mul", input, block, scale, dtype);
}

TwoTensors silu_quantize_composed(const Tensor& input, const Tensor& other, int64_t block, ScalarType scale, ScalarType dtype) {
  return quantize_operator().call(silu_mul(input, other), block, scale, dtype);
}

TwoTensors silu_quantize(const Tensor& input, const Tensor& other, int64_t block, ScalarType scale, ScalarType dtype) {
  if (gpu_of(input.device()) && input.numel() > 0) {
    TwoTensors to = silu_quantize_meta(input, other, block, scale, dtype);
    const Operands operands{regrouped(input, block), regrouped(other, block), {}, {}, {}};
    if (ran_on_gpu(call_of("silu_mul", Rounded::silu, operands, to, block), input)) return to;
  }
  return silu_quantize_composed(input, other, block, scale, dtype);
}

// --- rms_norm ---------------------------------------------------------------------------------------------------------------

ThreeTensors norm_quantize_meta(const Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                                std::optional<double>, const OptionalTensor& residual, double, int64_t block, ScalarType scale,
                                ScalarType dtype) {
  dims_of_shape("rms_norm", input, shape);
  auto [values, scales] = new_float8("rms_norm", input, block, scale, dtype);
  if (weight) {
    check_device("rms_norm", "(): weight", *weight, input.device(), "input");
    TORCH_CHECK(weight->sym_sizes() == shape, "rms_norm(): weight: expected the size ", shape, ", but got ",
                weight->sym_sizes());
  }
  if (residual) check_alike("rms_norm", "(): residual", *residual, input);
  const Tensor sum = residual ? new_result(input, residual->scalar_type()) : at::empty({0}, input.options());
  return {std::move(values), std::move(scales), sum};
}

ThreeTensors norm_quantize_composed(const Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                                    std::optional<double> eps, const OptionalTensor& residual, double offset, int64_t block,
                                    ScalarType scale, ScalarType dtype) {
  const int64_t dims = dims_of_shape("rms_norm", input, shape);
  const Tensor sum = residual ? (input + *residual).to(residual->scalar_type()).contiguous() : input;
  const Tensor wide = sum.detach().to(at::promote_types(input.scalar_type(), sum.scalar_type()));
  OptionalTensor w = weight;
  if (w && offset != 0) w = w->to(computed_in({wide, {}, *weight, {}, {}})) + offset;
  const double added = eps.value_or(epsilon_of(wide.scalar_type()));
  const Tensor y = std::get<0>(rms_norm_operator().call(wide, dims, w, added)).to(input.scalar_type());
  auto [values, scales] = quantize_operator().call(y, block, scale, dtype);
  return {std::move(values), std::move(scales), residual ? sum : at::empty({0}, input.options())};
}

ThreeTensors norm_quantize(const Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                           std::optional<double> eps, const OptionalTensor& residual, double offset, int64_t block,
                           ScalarType scale, ScalarType dtype) {
  ThreeTensors found = norm_quantize_meta(input, shape, weight, eps, residual, offset, block, scale, dtype);
  if (gpu_of(input.device()) && shape.size() == 1 && input.numel() > 0) {
    const auto& [values, scales, sum] = found;
    const Operands operands{input, tensor_of(residual), tensor_of(weight), {}, {}};
    QuantizeCall call = call_of("rms_norm", Rounded::norm, operands, {values, scales}, block);
    call.rows.eps = eps.value_or(epsilon_of(at::promote_types(input.scalar_type(), sum.scalar_type())));
    call.offset = static_cast<float>(offset);
    if (residual) call.sum = sum.data_ptr();
    if (ran_on_gpu(call, input)) return found;
  }
  return norm_quantize_composed(input, shape, weight, eps, residual, offset, block, scale, dtype);
}

// The sum has a gradient, and float8 none.
ThreeTensors norm_quantize_tracked(c10::DispatchKeySet keys, const Tensor& input, c10::SymIntArrayRef shape,
                                   const OptionalTensor& weight, std::optional<double> eps, const OptionalTensor& residual,
                                   double offset, int64_t block, ScalarType scale, ScalarType dtype) {
  if (residual && is_tracked(input, *residual))
    return norm_quantize_composed(input, shape, weight, eps, residual, offset, block, scale, dtype);
  const at::AutoDispatchBelowADInplaceOrView below;
  return norm_quantize_operator().redispatch(keys & c10::after_autograd_keyset, input, shape, weight, eps, residual, offset,
                                             block, scale, dtype);
}

}  // namespace

}  // namespace gpureduce::rows

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  using namespace gpureduce::rows;
  const std::string last = "int block, ScalarType scale, ScalarType dtype) -> (Tensor, Tensor";
  define_operator<rows::quantize, quantize_meta, nullptr, quantize_batched>(m, "quantize(Tensor input, " + last + ")");
  define_composite(m, "_quantize_composed(Tensor input, " + last + ")", &quantize_composed);  // for tests
  define_composite(m, "silu_mul(Tensor input, Tensor other) -> Tensor", &silu_mul);
  define_operator<silu_quantize, silu_quantize_meta, nullptr, silu_quantize_composed>(
      m, "_silu_mul_quantize(Tensor input, Tensor other, " + last + ")");
  for (const char* each : {"quantize", "_silu_mul_quantize"})  // float8 has no gradient, as torch's integers have none
    put(m, Key::Autograd, each, torch::CppFunction::makeFallthrough());
  define_operator<norm_quantize, norm_quantize_meta, norm_quantize_tracked, norm_quantize_composed>(
      m,
      "_rms_norm_quantize(Tensor input, SymInt[] normalized_shape, Tensor? weight, float? eps, Tensor? residual, float "
      "weight_offset, " +
          last + ", Tensor)");
}
