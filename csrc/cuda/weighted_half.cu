#include "weighted/weighted.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_weighted_half(const WeightedLaunch& launch) { return launch_small<Half>(launch, DType::Half); }

}  // namespace gpureduce::cuda
