// Sums of the cubes of magnitudes.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_cubes(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<Mapped<float, Map::cube>, float>(launch);
    case DType::BFloat16: return launch_typed<Mapped<BFloat16, Map::cube>, float>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
