// The way of a weighted sum to its kernels.
#include "weighted/join.cuh"

namespace gpureduce::cuda {

namespace {

cudaError_t reduce(const WeightedLaunch& launch) {
  return launch.plan.typed ? reduce_weighted_typed(launch) : reduce_weighted_any(launch);
}

}  // namespace

cudaError_t run_weighted(const WeightedLaunch& launch) {
  if (cudaError_t error = reduce(launch)) return error;
  if (!launch.plan.joins) return cudaSuccess;
  const weighted::Reduction& r = launch.reduction;
  const auto join = [&](auto acc) {
    using Acc = decltype(acc);
    return join_weighted<Acc>(launch, output_of<AnyResult>(r, r.path(), static_cast<Acc*>(nullptr)));
  };
  switch (r.accumulator) {
    case Accumulator::f32: return join(float{});
    case Accumulator::f64: return join(double{});
    case Accumulator::i64: return join(int64_t{});
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
