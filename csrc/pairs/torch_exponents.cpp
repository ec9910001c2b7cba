#include "torch_exponents.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../core/cuda/nodes.h"
#include "../rows/rows.h"
#endif

#include "../core/cpu/sum.h"
#include "../core/plan/exponents.h"
#include "../core/plan/rows.h"
#include "../core/torch/explain.h"
#include "../core/torch/results.h"
#include "cpu_exponents.h"

namespace gpureduce {

namespace {

using at::Tensor;

at::ScalarType computed_in(DType in) { return exponents::dtype_of(in) == DType::Float ? at::kFloat : at::kDouble; }

void run(const Reduction& r, at::Device device, const Tuning& tuning = {}) {
  run_on(device, r, tuning, [](const Reduction& reduction) {
    if (reduction.addends == Addends::exponents) return cpu::run_exponents(reduction);
    const bool found = cpu::run(reduction);
    TORCH_INTERNAL_ASSERT(found);
  });
}

// Writes the largest element and the sum of each row. Rows that registers hold are read once. The logarithms are another
// kernel's: here a warp would compute them for one row or a few, there for 32. Returns false if no such kernel takes the call.
bool run_as_rows(const Reduction& r, at::Device device, void* largest, void* sums) {
  const Device* const gpu = gpu_of(device);
  if (!gpu) return false;
  const Problem& p = r.problem;
  if (r.negate || p.reduced.size() > 1 || (p.length > 1 && p.reduced[0].stride != 1)) return false;
  const int64_t size = info(r.in).size;
  RowsCall call{};
  call.function = RowFunction::log_sum;
  call.wide = exponents::dtype_of(r.in) == DType::Double;
  call.operands[kRowX] = {static_cast<char*>(const_cast<void*>(r.input)), r.in};
  call.mean = largest;
  call.sum = sums;
  call.rows = p.outputs;
  call.length = p.length;
  for (const KeptDim& d : p.kept) {
    RowDim dim{d.size, {}};
    dim.strides[kRowX] = d.stride * size;
    if (!call.along.add(dim)) return false;
  }
  if (p.length > 1) {
    RowDim dim{p.length, {}};
    dim.strides[kRowX] = size;
    call.across.add(dim);
  }
  const cuda::RowsPlan plan = cuda::plan_rows(call, *gpu);
  if (!plan.is_compiled()) return false;
  if (Explanation* const e = explanation()) {
    e->say(cuda::text_of(call) + "\n" + plan.str(call));
    return true;
  }
#ifdef GPUREDUCE_WITH_CUDA
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cuda::run_rows(call, plan, *gpu, c10::cuda::getCurrentCUDAStream(device.index())));
#endif
  return true;
}

// The outputs' largest elements, by number, in the accumulator's type.
Tensor largest_of(const Reduction& r, const Tensor& self) {
  const at::ScalarType computed = computed_in(r.in);
  const bool converts = info(r.in).kind == Kind::integer;
  Tensor largest = allocate({r.problem.outputs}, converts ? self.scalar_type() : computed, self);
  run(largest_elements(r, largest.mutable_data_ptr()), self.device());
  if (!converts) return largest;
  const Tensor wide = allocate({r.problem.outputs}, computed, self);
  Problem by_number = numbered(r.problem);
  for (KeptDim& d : by_number.kept) d.stride = d.out_stride;
  run(copied_numbers(r, by_number, largest.const_data_ptr(), r.in, wide.mutable_data_ptr()), self.device());
  return wide;
}

// Writes the logarithms of sums to the places of the problem's outputs.
void finish(const Tensor& sums, const Tensor& largest, const Problem& p, void* out, DType t) {
  const bool wide = sums.scalar_type() == at::kDouble;
  if (Explanation* const e = explanation())
    return e->tell(
        sums.device(), "", "sum",
        [&](const Device&) { return "kernel finish_exponents: the logarithms of " + std::to_string(p.outputs) + " sums"; },
        [&] {
          cpu::finish_exponents(wide ? Accumulator::f64 : Accumulator::f32, sums.const_data_ptr(), largest.const_data_ptr(), p,
                                out, t);
        });
#ifdef GPUREDUCE_WITH_CUDA
  if (sums.is_cuda()) {
    const c10::cuda::CUDAGuard guard(sums.device());
    const auto stream = c10::cuda::getCurrentCUDAStream(sums.device().index());
    const auto with = [&](auto zero) {
      using A = decltype(zero);
      C10_CUDA_CHECK(cuda::finish_exponents(sums.const_data_ptr<A>(), largest.const_data_ptr<A>(), p, out, t, stream));
    };
    if (wide) with(double{});
    else with(float{});
    return;
  }
#endif
  cpu::finish_exponents(wide ? Accumulator::f64 : Accumulator::f32, sums.const_data_ptr(), largest.const_data_ptr(), p, out, t);
}

}  // namespace

void run_logsumexp(const Reduction& r, const Tensor& self, const Tuning& tuning) {
  const Tensor sums = allocate({r.problem.outputs}, computed_in(r.in), self);
  if (gpu_of(self.device()) && !tuning.forces()) {
    const Tensor read_once = allocate({r.problem.outputs}, computed_in(r.in), self);
    if (run_as_rows(r, self.device(), read_once.mutable_data_ptr(), sums.mutable_data_ptr()))
      return finish(sums, read_once, r.problem, r.output, r.out);
  }
  const Tensor largest = largest_of(r, self);
  Reduction by_number = r;
  by_number.problem = numbered(r.problem);
  run(exponent_sums(by_number, largest.const_data_ptr(), sums.mutable_data_ptr()), self.device(), tuning);
  finish(sums, largest, r.problem, r.output, r.out);
}

namespace {

// --- parts, for ranks -----------------------------------------------------------------------------------------------------

void check_numbers(const Tensor& self, const Tensor& largest) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "_exponent_sum(): complex numbers are not supported");
  const at::ScalarType wanted = computed_in(dtype_of(self.scalar_type(), "an input of dtype", "_exponent_sum"));
  TORCH_CHECK(largest.scalar_type() == wanted, "_exponent_sum(): largest is ", wanted, ", not ", largest.scalar_type());
  TORCH_CHECK(largest.device() == self.device(), "_exponent_sum(): largest and self are on one device");
  TORCH_CHECK(largest.dim() == self.dim(), "_exponent_sum(): largest keeps the reduced dims, with size 1");
}

Tensor exponent_sum_meta(const Tensor& self, const Tensor& largest, OptionalDims dim, bool keepdim) {
  check_numbers(self, largest);
  const DimMask mask = reduced_dims(dim, self.dim());
  for (int64_t d = 0; d < self.dim(); ++d)
    TORCH_CHECK(mask[d] ? largest.sym_size(d) == 1 : largest.sym_size(d) == self.sym_size(d),
                "_exponent_sum(): largest has self's sizes, but 1 where dims are reduced");
  return at::empty_symint(result_sizes(self.sym_sizes(), mask, keepdim), largest.options());
}

// The sums of e^(x - largest) over dims. An e^(x - largest) that would be subnormal counts as 0.
Tensor exponent_sum(const Tensor& self, const Tensor& given, OptionalDims dim, bool keepdim) {
  const Tensor result = exponent_sum_meta(self, given, dim, keepdim), largest = given.resolve_neg();
  const DimMask mask = reduced_dims(dim, self.dim());
  Reduction r{};
  r.in = dtype_of(self.scalar_type(), "an input of dtype");
  r.out = exponents::dtype_of(r.in);
  r.accumulator = exponents::accumulator_of(r.in);
  r.negate = self.is_neg();
  r.input = self.const_data_ptr();
  InputDims dims(self.dim());
  for (int64_t d = 0; d < self.dim(); ++d) dims[d] = {self.size(d), self.stride(d), 0, false, mask[d] ? 0 : largest.stride(d)};
  complete(r, dims, mask, result, keepdim, self.device(), "_exponent_sum: the input has");
  if (r.problem.outputs == 0) return result;
  if (r.problem.length == 0) return result.zero_();
  const Tensor by_number = allocate({r.problem.outputs}, largest.scalar_type(), self);
  Problem from = r.problem;
  for (KeptDim& d : from.kept) d.stride = d.second;
  run(copied_numbers(r, from, largest.const_data_ptr(), r.out, by_number.mutable_data_ptr()), self.device());
  run(exponent_sums(r, by_number.const_data_ptr(), result.mutable_data_ptr()), self.device());
  return result;
}

Tensor finish_logsumexp_meta(const Tensor& sum, const Tensor& largest, at::ScalarType dtype) {
  TORCH_CHECK((sum.scalar_type() == at::kFloat || sum.scalar_type() == at::kDouble) &&
                  sum.scalar_type() == largest.scalar_type() && sum.device() == largest.device() &&
                  sum.sym_sizes() == largest.sym_sizes(),
              "_finish_logsumexp(): sum and largest are alike, of float32 or float64");
  return at::empty_symint(sum.sym_sizes(), sum.options().dtype(dtype));
}

// The logarithms of sums of exponentials, rounded once to `dtype`.
Tensor finish_logsumexp(const Tensor& given_sum, const Tensor& given_largest, at::ScalarType dtype) {
  const Tensor result = finish_logsumexp_meta(given_sum, given_largest, dtype).contiguous();
  Problem p;
  p.outputs = result.numel();
  p.kept.push_back({p.outputs, 1, 1, 0});
  if (p.outputs > 0)
    finish(plain(given_sum), plain(given_largest), p, result.mutable_data_ptr(), dtype_of(dtype, "a result of dtype"));
  return result;
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define_operator<exponent_sum, exponent_sum_meta>(
      m, "_exponent_sum(Tensor self, Tensor largest, int[1]? dim=None, bool keepdim=False) -> Tensor");
  put(m, Key::Negative, "_exponent_sum", torch::CppFunction::makeFallthrough());
  define_operator<finish_logsumexp, finish_logsumexp_meta>(
      m, "_finish_logsumexp(Tensor sum, Tensor largest, ScalarType dtype) -> Tensor");
}
