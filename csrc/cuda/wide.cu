// Sums in double precision of smaller floats, and of their magnitudes.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_wide(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<Mapped<float, Map::value>, double>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
