// Counts of elements that are not zero. By masks those of a size share their kernels.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_counts(const Launch& launch) {
  switch (info(launch.reduction.in).size) {
    case 1: return launch_typed<Mapped<uint8_t, Map::nonzero>, int64_t>(launch);
    case 2: return launch_typed<Mapped<uint16_t, Map::nonzero>, int64_t>(launch);
    case 4: return launch_typed<Mapped<uint32_t, Map::nonzero>, int64_t>(launch);
    case 8: return launch_typed<Mapped<uint64_t, Map::nonzero>, int64_t>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
