#include "weighted/weighted.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_weighted_single(const WeightedLaunch& launch) {
  const weighted::Reduction& r = launch.reduction;
  const DType first = (launch.plan.swapped ? r.weight : r.self).dtype, second = (launch.plan.swapped ? r.self : r.weight).dtype;
  if (first == DType::Float && second == DType::Float) return launch_pair<float, float, float>(launch);
  if (first == DType::Float && second == DType::Bool) return launch_pair<float, Boolean, float>(launch);
  if (first == DType::Double && second == DType::Double) return launch_pair<double, double, double>(launch);
  return cudaErrorInvalidValue;
}

cudaError_t reduce_weighted_half(const WeightedLaunch& launch) { return launch_small<Half>(launch, DType::Half); }
cudaError_t reduce_weighted_bfloat16(const WeightedLaunch& launch) { return launch_small<BFloat16>(launch, DType::BFloat16); }

}  // namespace gpureduce::cuda
