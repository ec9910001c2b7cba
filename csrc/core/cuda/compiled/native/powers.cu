#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::powers>(const gpureduce::cuda::Launch&);
