#include "../../launch_pairs.cuh"

namespace gpureduce::cuda {

cudaError_t launch_products_of_wholes(const Launch& launch) {
  switch (launch.reduction.in) {
    case DType::Double: return launch_pair<double, double, double>(launch);
    case DType::Int: return launch_pair<int32_t, int32_t, int64_t>(launch);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
