// Private ops that join and finish nodes (core/problem/nodes.h).
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../core/cuda/nodes.h"
#endif

#include <string>
#include <tuple>

#include "../core/problem/nodes.h"
#include "../core/torch/explain.h"
#include "../core/torch/results.h"

namespace gpureduce {

namespace {

using at::Tensor;

constexpr int64_t kGrain = 4096;  // nodes of a thread, at least

template <class F>
void for_each(int64_t count, F f) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

// Says what finishes nodes. Returns false if the call runs.
bool says_finish(at::Device device, int64_t count) {
  Explanation* const e = explanation();
  if (!e) return false;
  e->tell(
      device, "", "node",
      [&](const Device&) { return "kernel finish_nodes: the results of " + std::to_string(count) + " nodes"; },
      [&] { e->say_parts(count, kGrain); });
  return true;
}

// --- the last nodes --------------------------------------------------------------------------------------------------------

Operation operation_of(const std::string& name) {
  for (const Operation op : kOperations)
    if (name == name_of(op)) return op;
  TORCH_CHECK(false, "_finish(): there is no operation ", name);
}

Accumulator accumulator_of_nodes(Operation op, at::ScalarType type) {
  if (type == at::kFloat) return Accumulator::f32;
  if (type == at::kDouble) return Accumulator::f64;
  if (type == at::kLong) return Accumulator::i64;
  if (type == at::kComplexFloat) return Accumulator::c64;
  if (type == at::kComplexDouble) return Accumulator::c128;
  TORCH_CHECK(false, "_finish(): nodes of ", name_of(op), " are its accumulators, not of dtype ", type);
}

Tensor finish_meta(const Tensor& nodes, const std::string& operation, int64_t, at::ScalarType dtype) {
  const Operation op = operation_of(operation);
  TORCH_CHECK(info(op).typing != Typing::truth || dtype == at::kBool || dtype == at::kByte, "_finish(): dtype: results of ",
              operation, " are bool or uint8, not ", dtype);
  return at::empty_symint(nodes.sym_sizes(), nodes.options().dtype(dtype));
}

// The results of an operation from its last nodes, of `count` elements each: finished, and rounded once to `dtype`.
Tensor finish(const Tensor& given, const std::string& operation, int64_t count, at::ScalarType dtype) {
  const Operation op = operation_of(operation);
  const Finish how = finish_of_nodes(op);
  const bool truth = info(op).typing == Typing::truth;
  Tensor results = finish_meta(given, operation, count, dtype);
  if (how == Finish::none && given.scalar_type() == dtype) return results.copy_(given);
  const Tensor given_plain = plain(given);
  const Nodes nodes{given_plain.const_data_ptr(), accumulator_of_nodes(op, given.scalar_type())};
  const DType t = truth ? DType::Bool : dtype_of(dtype, "a result of dtype");  // uint8 stores the same bytes
  void* const out = results.mutable_data_ptr();
  if (says_finish(given.device(), results.numel())) return results;
#ifdef GPUREDUCE_WITH_CUDA
  if (given.is_cuda()) {
    const c10::cuda::CUDAGuard guard(given.device());
    C10_CUDA_CHECK(cuda::finish_nodes(nodes, how, count, out, t, results.numel(), c10::cuda::getCurrentCUDAStream()));
    return results;
  }
#endif
  for_each(results.numel(), [&](int64_t i) { store_node(nodes, i, how, count, out, t); });
  return results;
}

std::tuple<Tensor, Tensor> finish_moments_meta(const Tensor& moments, const Tensor& first, int64_t, double, bool,
                                               at::ScalarType dtype) {
  TORCH_CHECK(moments.scalar_type() == at::kDouble && first.scalar_type() == at::kDouble &&
                  moments.sym_numel() == 2 * first.sym_numel() && moments.device() == first.device(),
              "_finish_moments(): moments are two float64 for each first element, which is a float64, too");
  const at::TensorOptions options = first.options().dtype(dtype);
  return {at::empty_symint(first.sym_sizes(), options), at::empty_symint(first.sym_sizes(), options)};
}

// Variances or standard deviations, and means, in `dtype`, from moments: for `count` elements, the sum of their differences
// from the first one, and the sum of the squares.
std::tuple<Tensor, Tensor> finish_moments(const Tensor& given, const Tensor& given_first, int64_t count, double correction,
                                          bool root, at::ScalarType dtype) {
  const auto [variances, means] = finish_moments_meta(given, given_first, count, correction, root, at::kDouble);
  const Tensor moments = plain(given), first = plain(given_first);
  const auto* const from = static_cast<const Moments*>(moments.const_data_ptr());
  const double* const firsts = first.const_data_ptr<double>();
  double *const to = variances.mutable_data_ptr<double>(), *const mean = means.mutable_data_ptr<double>();
  const variance::Finishing finishing{count, correction, root};
  const auto in_dtype = [&](const Tensor& x) { return dtype == at::kDouble ? x : finish(x, "sum", 1, dtype); };
  if (says_finish(moments.device(), first.numel())) return {in_dtype(variances), in_dtype(means)};
#ifdef GPUREDUCE_WITH_CUDA
  if (moments.is_cuda()) {
    const c10::cuda::CUDAGuard guard(moments.device());
    C10_CUDA_CHECK(cuda::finish_moments(from, firsts, finishing, to, mean, first.numel(), c10::cuda::getCurrentCUDAStream()));
    return {in_dtype(variances), in_dtype(means)};
  }
#endif
  for_each(first.numel(), [&](int64_t i) {
    const auto found = finishing(from[i], firsts[i]);
    to[i] = found.variance;
    mean[i] = found.mean;
  });
  return {in_dtype(variances), in_dtype(means)};
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define_operator<finish, finish_meta>(m, "_finish(Tensor nodes, str operation, int count, ScalarType dtype) -> Tensor");
  define_operator<finish_moments, finish_moments_meta>(
      m,
      "_finish_moments(Tensor moments, Tensor first, int count, float correction, bool root, ScalarType dtype) -> "
      "(Tensor, Tensor)");
}
