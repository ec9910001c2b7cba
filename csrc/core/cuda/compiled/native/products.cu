#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::products>(const gpureduce::cuda::Launch&);
