#include "../../launch.cuh"

namespace gpureduce::cuda {

namespace {

template <class In>
cudaError_t launch_typed(const Launch& launch) {
  using Number = exponents::Computed<In>;
  const Reduction& r = launch.reduction;
  const Exponents<In> source{static_cast<const In*>(r.input), l2_policy(launch.plan.streams), l2_policy(),
                             static_cast<const Number*>(r.largest)};
  return launch_source<Exponents<In>, Number>(launch, source);
}

}  // namespace

cudaError_t launch_exponents_typed(const Launch& launch) {
  return launch_floats(launch, [&](auto zero) { return launch_typed<decltype(zero)>(launch); });
}

}  // namespace gpureduce::cuda
