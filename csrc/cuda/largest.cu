// The largest elements, or by masks the smallest, and those of magnitudes. Integers of a size share their kernels.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_largest(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Float: return launch_typed<Ordered<float>, Largest<float>>(launch);
    case DType::Half: return launch_typed<Ordered<Half>, Largest<float>>(launch);
    case DType::BFloat16: return launch_typed<Ordered<BFloat16>, Largest<float>>(launch);
    default: break;
  }
  switch (info(launch.reduction.in).size) {
    case 1: return launch_typed<Ordered<int8_t>, Largest<int64_t>>(launch);
    case 4: return launch_typed<Ordered<int32_t>, Largest<int64_t>>(launch);
    default: return launch_typed<Ordered<int64_t>, Largest<int64_t>>(launch);
  }
}

}  // namespace gpureduce::cuda
