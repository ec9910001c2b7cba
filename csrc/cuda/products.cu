// Products: those of integers modulo 2^64.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_products(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<Mapped<float, Map::factor>, Product<float>>(launch);
    case DType::BFloat16: return launch_typed<Mapped<BFloat16, Map::factor>, Product<float>>(launch);
    case DType::Int: return launch_typed<Mapped<int32_t, Map::factor>, Product<int64_t>>(launch);
    case DType::Long: return launch_typed<Mapped<int64_t, Map::factor>, Product<int64_t>>(launch);
    case DType::UInt64: return launch_typed<Mapped<int64_t, Map::factor>, Product<int64_t>>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
