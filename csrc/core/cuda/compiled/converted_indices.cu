// The indices of largest and smallest elements of any dtype, converted one by one at run time. Calls of a compiled dtype are
// passed on.
#include "../launch_pairs.cuh"

namespace gpureduce::cuda {

cudaError_t launch_indices(const Launch& launch) {
  const Reduction& r = launch.reduction;
  if (r.engine != Engine::converted) return launch_indices_typed(launch);
  const ConvertedIndices source{{r.input, l2_policy(launch.plan.streams), {r.in, r.map, r.negate, false}},
                                has_one_second(launch)};
  return launch_source<ConvertedIndices, Indexed>(launch, source);
}

}  // namespace gpureduce::cuda
