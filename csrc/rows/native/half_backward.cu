#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_half_rows_backward(const RowsCall& call, const Device& device, cudaStream_t stream) {
  if (call.wide || result_dtype(call) != DType::Half) return kNoKernel;
  return launch_rows<Half, Half, true>(call, DType::Half, DType::Half, device, stream);
}

}  // namespace gpureduce::cuda
