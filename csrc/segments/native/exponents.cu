#include "../typed.cuh"

namespace gpureduce::cuda {

namespace {

template <class In>
cudaError_t exponents_of(const SegmentsLaunch& launch) {
  using Number = exponents::Computed<In>;
  const Reduction& r = launch.segments.reduction;
  const Exponents<In, /*kAligned=*/true> source{static_cast<const In*>(r.input), policy_of(launch), l2_policy(),
                                                static_cast<const Number*>(r.largest)};
  return launch_own_rows<Number>(launch, source);
}

}  // namespace

cudaError_t segment_exponents(const SegmentsLaunch& launch) {
  switch (launch.segments.reduction.in) {
    case DType::Float: return exponents_of<float>(launch);
    case DType::Half: return exponents_of<Half>(launch);
    case DType::BFloat16: return exponents_of<BFloat16>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
