#include "../../launch.cuh"

namespace gpureduce::cuda {

namespace {

template <class In>
cudaError_t launch_typed(const Launch& launch) {
  const Deviations<In> source{static_cast<const In*>(launch.reduction.input), l2_policy(launch.plan.streams)};
  return launch_source<Deviations<In>, Moments>(launch, source);
}

}  // namespace

cudaError_t launch_deviations_typed(const Launch& launch) {
  return launch_floats(launch, [&](auto zero) { return launch_typed<decltype(zero)>(launch); });
}

}  // namespace gpureduce::cuda
