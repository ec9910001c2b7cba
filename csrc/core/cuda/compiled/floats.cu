#include "../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::floats>(const gpureduce::cuda::Launch&);
