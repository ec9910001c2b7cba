#include "../../launch_pairs.cuh"

namespace gpureduce::cuda {

namespace {

template <class In>
cudaError_t launch_typed(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const Indices<In> source{static_cast<const In*>(r.input), l2_policy(launch.plan.streams), has_one_second(launch),
                           r.map == Map::negative};
  return launch_source<Indices<In>, Indexed>(launch, source);
}

}  // namespace

cudaError_t launch_indices_typed(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<float>(launch);
    case DType::Half: return launch_typed<Half>(launch);
    case DType::BFloat16: return launch_typed<BFloat16>(launch);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
