#include "launch.cuh"

namespace gpureduce::cuda {
template cudaError_t reduce_family<Family::byte>(const Launch&);
template cudaError_t reduce_family<Family::integer>(const Launch&);
}  // namespace gpureduce::cuda
