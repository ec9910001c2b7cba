// Sums of what maps make of elements; those of rare dtypes, or in double precision.
#include "lean.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_lean_sums(const Launch& launch) {
  using A = Accumulator;
  switch (lean_map(launch.reduction)) {
    case Map::value: return launch_one_of<Map::value, A::f64, A::i64, A::c64, A::c128>(launch);
    case Map::number: return launch_one_of<Map::number, A::f32, A::f64>(launch);
    case Map::magnitude: return launch_one_of<Map::magnitude, A::f32>(launch);
    case Map::square: return launch_one_of<Map::square, A::f32, A::f64>(launch);
    case Map::cube: return launch_one_of<Map::cube, A::f32>(launch);
    case Map::nonzero: return launch_one_of<Map::nonzero, A::i64>(launch);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
