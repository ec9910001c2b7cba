#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::bytes>(const gpureduce::cuda::Launch&);
