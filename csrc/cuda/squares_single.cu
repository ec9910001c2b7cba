#include "launch.cuh"

namespace gpureduce::cuda {
template cudaError_t reduce_family<Family::single, Map::square>(const Launch&);
}
