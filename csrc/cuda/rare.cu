// Sums of rare dtypes, which have lean kernels.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_rare(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::UInt16: return launch_typed<Mapped<uint16_t, Map::value>, int64_t>(launch);
    case DType::UInt32: return launch_typed<Mapped<uint32_t, Map::value>, int64_t>(launch);
    case DType::ComplexHalf: return launch_typed<Mapped<Complex<Half>, Map::value>, Complex<float>>(launch);
    case DType::ComplexFloat: return launch_typed<Mapped<Complex<float>, Map::value>, Complex<float>>(launch);
    case DType::ComplexDouble: return launch_typed<Mapped<Complex<double>, Map::value>, Complex<double>>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
