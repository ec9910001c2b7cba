#include "weighted/weighted.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_weighted_bfloat16(const WeightedLaunch& launch) { return launch_small<BFloat16>(launch, DType::BFloat16); }

}  // namespace gpureduce::cuda
