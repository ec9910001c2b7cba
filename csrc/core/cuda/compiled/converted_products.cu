// Weighted sums of elements of any dtypes, converted one by one at run time. Calls of a compiled pair are passed on.
#include "../launch_pairs.cuh"

namespace gpureduce::cuda {

namespace {

template <class Acc>
cudaError_t launch_converted_pair(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const ConvertedInput first{r.input, l2_policy(launch.plan.streams), {r.in, Map::value, r.negate, false}};
  const ConvertedInput second{r.second, second_policy(launch), {r.second_dtype, Map::value, r.second_negate, false}};
  const ConvertedPair<Acc> source{{first, second}, r.product, r.truth, has_one_second(launch)};
  return launch_source<ConvertedPair<Acc>, Acc>(launch, source);
}

}  // namespace

cudaError_t launch_products(const Launch& launch) {
  const Reduction& r = launch.reduction;
  if (r.engine == Engine::converted) {
    switch (r.accumulator) {
      case Accumulator::f32: return launch_converted_pair<float>(launch);
      case Accumulator::f64: return launch_converted_pair<double>(launch);
      case Accumulator::i64: return launch_converted_pair<int64_t>(launch);
      default: return kNoKernel;
    }
  }
  switch (r.in) {
    case DType::Float: return launch_products_of_floats(launch);
    case DType::Half:
    case DType::BFloat16: return launch_products_of_halves(launch);
    default: return launch_products_of_wholes(launch);
  }
}

}  // namespace gpureduce::cuda
