#include "launch.cuh"

namespace gpureduce::cuda {
template cudaError_t reduce_family<Family::single>(const Launch&);
template cudaError_t reduce_family<Family::half>(const Launch&);
template cudaError_t reduce_family<Family::float8>(const Launch&);
}  // namespace gpureduce::cuda
