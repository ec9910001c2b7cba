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
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<float>(launch);
    case DType::Half: return launch_typed<Half>(launch);
    case DType::BFloat16: return launch_typed<BFloat16>(launch);
    case DType::Double: return launch_typed<double>(launch);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
