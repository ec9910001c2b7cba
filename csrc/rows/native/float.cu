#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_float_rows(const RowsCall& call, const Device& device, cudaStream_t stream) {
  if (call.wide) return launch_rows<double, double, false>(call, DType::Double, DType::Double, device, stream);
  return launch_rows<float, float, false>(call, DType::Float, DType::Float, device, stream);
}

}  // namespace gpureduce::cuda
