#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t run_float_rows(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  if (call.wide) return launch_rows<double, double, false>(call, plan, queue);
  return launch_rows<float, float, false>(call, plan, queue);
}

}  // namespace gpureduce::cuda
