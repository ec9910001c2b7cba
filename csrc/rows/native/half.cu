#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_half_rows(const RowsCall& call, const Device& device, cudaStream_t stream) {
  if (call.wide) return kNoKernel;
  switch (result_dtype(call)) {
    case DType::Half: return launch_rows<Half, Half, false>(call, DType::Half, DType::Half, device, stream);
    case DType::Float: return launch_softmaxes<Half, float>(call, DType::Half, DType::Float, device, stream);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
