// Extrema, products and logarithms of sums of exponentials.
#include "lean.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_lean_joins(const Launch& launch) {
  using A = Accumulator;
  switch (lean_map(launch.reduction)) {
    case Map::value: return launch_one_of<Map::value, A::largest_f32, A::largest_f64, A::largest_i64>(launch);
    case Map::factor: return launch_one_of<Map::factor, A::product_f32, A::product_f64, A::product_i64>(launch);
    case Map::exponent: return launch_one_of<Map::exponent, A::logsum_f32>(launch);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
