#include "../../launch_pairs.cuh"

namespace gpureduce::cuda {

cudaError_t launch_products_of_floats(const Launch& launch) {
  switch (launch.reduction.second_dtype) {
    case DType::Half: return launch_pair<float, Half, float>(launch);
    case DType::BFloat16: return launch_pair<float, BFloat16, float>(launch);
    case DType::Bool: return launch_pair<float, Boolean, float>(launch);
    default: return launch_pair<float, float, float>(launch);
  }
}

}  // namespace gpureduce::cuda
