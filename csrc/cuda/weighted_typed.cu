#include "weighted/weighted.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_weighted_typed(const WeightedLaunch& launch) {
  const weighted::Reduction& r = launch.reduction;
  const DType first = (launch.plan.swapped ? r.weight : r.self).dtype, second = (launch.plan.swapped ? r.self : r.weight).dtype;
  if (first == DType::Half || second == DType::Half) return launch_small<Half>(launch, DType::Half);
  if (first == DType::BFloat16 || second == DType::BFloat16) return launch_small<BFloat16>(launch, DType::BFloat16);
  if (first == DType::Float && second == DType::Float) return launch_pair<float, float, float>(launch);
  if (first == DType::Float && second == DType::Bool) return launch_pair<float, Boolean, float>(launch);
  if (first == DType::Double && second == DType::Double) return launch_pair<double, double, double>(launch);
  if (first == DType::Int && second == DType::Int) return launch_pair<int32_t, int32_t, int64_t>(launch);
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
