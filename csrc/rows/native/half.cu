#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_half_rows(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  switch (result_dtype(call)) {
    case DType::Half: return launch_rows<Half, Half, false>(call, plan, queue);
    case DType::Float: return launch_softmaxes<Half, float>(call, plan, queue);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
