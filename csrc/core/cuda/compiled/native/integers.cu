#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::integers>(const gpureduce::cuda::Launch&);
