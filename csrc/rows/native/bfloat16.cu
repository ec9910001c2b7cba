#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_bfloat16_rows(const RowsCall& call, const Device& device, cudaStream_t stream) {
  if (call.wide) return kNoKernel;
  switch (result_dtype(call)) {
    case DType::BFloat16: return launch_rows<BFloat16, BFloat16, false>(call, DType::BFloat16, DType::BFloat16, device, stream);
    case DType::Float: return launch_softmaxes<BFloat16, float>(call, DType::BFloat16, DType::Float, device, stream);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
