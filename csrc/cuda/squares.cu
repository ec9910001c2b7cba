// Sums of squares.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_squares(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<Mapped<float, Map::square>, float>(launch);
    case DType::Half: return launch_typed<Mapped<Half, Map::square>, float>(launch);
    case DType::BFloat16: return launch_typed<Mapped<BFloat16, Map::square>, float>(launch);
    case DType::Double: return launch_typed<Mapped<double, Map::square>, double>(launch);
    case DType::ComplexFloat: return launch_typed<Mapped<Complex<float>, Map::square>, float>(launch);
    case DType::ComplexDouble: return launch_typed<Mapped<Complex<double>, Map::square>, double>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
