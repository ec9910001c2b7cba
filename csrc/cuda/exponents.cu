// Logarithms of sums of exponentials.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_exponents(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<Mapped<float, Map::exponent>, LogSum<float>>(launch);
    case DType::BFloat16: return launch_typed<Mapped<BFloat16, Map::exponent>, LogSum<float>>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
