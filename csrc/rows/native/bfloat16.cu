#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_bfloat16_rows(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  switch (result_dtype(call)) {
    case DType::BFloat16: return launch_rows<BFloat16, BFloat16, false>(call, plan, queue);
    case DType::Float: return launch_softmaxes<BFloat16, float>(call, plan, queue);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
