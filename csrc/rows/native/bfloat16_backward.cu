#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_bfloat16_rows_backward(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  return launch_rows<BFloat16, BFloat16, true>(call, plan, queue);
}

}  // namespace gpureduce::cuda
