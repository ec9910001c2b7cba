// Sums of all that are numbers.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_nansums(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<Mapped<float, Map::number>, float>(launch);
    case DType::BFloat16: return launch_typed<Mapped<BFloat16, Map::number>, float>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
