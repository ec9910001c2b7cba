#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_float_rows_backward(const RowsCall& call, const Device& device, cudaStream_t stream) {
  if (call.wide) return launch_rows<double, double, true>(call, DType::Double, DType::Double, device, stream);
  switch (result_dtype(call)) {
    case DType::Float: return launch_rows<float, float, true>(call, DType::Float, DType::Float, device, stream);
    case DType::Half: return launch_softmaxes<float, Half>(call, DType::Float, DType::Half, device, stream);
    case DType::BFloat16: return launch_softmaxes<float, BFloat16>(call, DType::Float, DType::BFloat16, device, stream);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
