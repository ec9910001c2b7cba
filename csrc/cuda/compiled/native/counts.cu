#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::cuda::Unit::counts>(const gpureduce::cuda::Launch&);
