#include "weighted/weighted.cuh"

namespace gpureduce::cuda {

namespace {

template <class Acc>
cudaError_t launch_any(const WeightedLaunch& launch) {
  const weighted::Reduction& r = launch.reduction;
  using Source = AnyPair<Acc>;
  return launch_weighted<1>(launch, Source{any_of(r.self), any_of(r.weight), r.product, r.nonzero}, writer_of<Source>(launch));
}

}  // namespace

cudaError_t reduce_weighted_any(const WeightedLaunch& launch) {
  switch (launch.reduction.accumulator) {
    case Accumulator::f32: return launch_any<float>(launch);
    case Accumulator::f64: return launch_any<double>(launch);
    case Accumulator::i64: return launch_any<int64_t>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
