// The way of a weighted sum to its kernels.
#include "weighted/join.cuh"

namespace gpureduce::cuda {

namespace {

cudaError_t reduce(const WeightedLaunch& launch) {
  const weighted::Reduction& r = launch.reduction;
  if (!launch.plan.typed) return reduce_weighted_any(launch);
  if (r.self.dtype == DType::Half || r.weight.dtype == DType::Half) return reduce_weighted_half(launch);
  if (r.self.dtype == DType::BFloat16 || r.weight.dtype == DType::BFloat16) return reduce_weighted_bfloat16(launch);
  return reduce_weighted_single(launch);
}

}  // namespace

cudaError_t run_weighted(const WeightedLaunch& launch) {
  if (cudaError_t error = reduce(launch)) return error;
  if (!launch.plan.joins) return cudaSuccess;
  const weighted::Reduction& r = launch.reduction;
  const auto join = [&](auto acc) {
    using Acc = decltype(acc);
    return join_weighted<Acc>(launch, output_of<Acc, true>(r, static_cast<Acc*>(nullptr)));
  };
  switch (r.accumulator) {
    case Accumulator::f32: return join(float{});
    case Accumulator::f64: return join(double{});
    case Accumulator::i64: return join(int64_t{});
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
