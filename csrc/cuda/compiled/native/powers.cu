#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::cuda::Unit::powers>(const gpureduce::cuda::Launch&);
