#include "../../launch.cuh"

template cudaError_t gpureduce::cuda::launch_unit<gpureduce::cuda::Unit::integer_extrema>(const gpureduce::cuda::Launch&);
