#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::counts>(const gpureduce::cuda::Launch&);
