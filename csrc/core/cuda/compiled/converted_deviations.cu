// Variances of elements of any dtype, converted one by one at run time. Calls of a compiled dtype are passed on.
#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t launch_deviations(const Launch& launch) {
  const Reduction& r = launch.reduction;
  if (r.engine != Engine::converted) return launch_deviations_typed(launch);
  const ConvertedDeviations source{{r.input, l2_policy(launch.plan.streams), {r.in, Map::value, r.negate, false}}};
  return launch_source<ConvertedDeviations, Moments>(launch, source);
}

}  // namespace gpureduce::cuda
