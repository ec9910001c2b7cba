#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::float_extrema>(const gpureduce::cuda::Launch&);
