#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_float_rows_backward(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  if (call.wide) return launch_rows<double, double, true>(call, plan, queue);
  switch (result_dtype(call)) {
    case DType::Float: return launch_rows<float, float, true>(call, plan, queue);
    case DType::Half: return launch_softmaxes<float, Half>(call, plan, queue);
    case DType::BFloat16: return launch_softmaxes<float, BFloat16>(call, plan, queue);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
