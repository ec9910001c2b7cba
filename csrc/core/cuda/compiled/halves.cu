#include "../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::halves>(const gpureduce::cuda::Launch&);
