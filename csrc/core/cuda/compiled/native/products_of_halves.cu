#include "../../launch_pairs.cuh"

namespace gpureduce::cuda {

cudaError_t launch_products_of_halves(const Launch& launch) {
  return launch.reduction.in == DType::Half ? launch_half<Half>(launch) : launch_half<BFloat16>(launch);
}

}  // namespace gpureduce::cuda
