#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::Unit::integer_extrema>(const gpureduce::cuda::Launch&);
