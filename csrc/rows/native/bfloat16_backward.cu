#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_bfloat16_rows_backward(const RowsCall& call, const Device& device, cudaStream_t stream) {
  if (call.wide || result_dtype(call) != DType::BFloat16) return kNoKernel;
  return launch_rows<BFloat16, BFloat16, true>(call, DType::BFloat16, DType::BFloat16, device, stream);
}

}  // namespace gpureduce::cuda
