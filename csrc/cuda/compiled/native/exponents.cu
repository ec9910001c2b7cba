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
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<float>(launch);
    case DType::Half: return launch_typed<Half>(launch);
    case DType::BFloat16: return launch_typed<BFloat16>(launch);
    case DType::Double: return launch_typed<double>(launch);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
