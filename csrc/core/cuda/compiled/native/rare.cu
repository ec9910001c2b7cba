#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::rare>(const gpureduce::cuda::Launch&);
