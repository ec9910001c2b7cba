#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_half_rows_backward(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  return launch_rows<Half, Half, true>(call, plan, queue);
}

}  // namespace gpureduce::cuda
