// Sums of exponentials of elements of any dtype, converted one by one at run time. Calls of a compiled dtype are passed on.
#include "../launch.cuh"

namespace gpureduce::cuda {

namespace {

template <class Acc>
cudaError_t launch_converted_exponents(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const ConvertedExponents<Acc> source{{r.input, l2_policy(launch.plan.streams), {r.in, Map::value, r.negate, false}},
                                       static_cast<const Acc*>(r.largest)};
  return launch_source<ConvertedExponents<Acc>, Acc>(launch, source);
}

}  // namespace

cudaError_t launch_exponents(const Launch& launch) {
  if (launch.reduction.engine != Engine::converted) return launch_exponents_typed(launch);
  return launch.reduction.accumulator == Accumulator::f32 ? launch_converted_exponents<float>(launch)
                                                          : launch_converted_exponents<double>(launch);
}

}  // namespace gpureduce::cuda
