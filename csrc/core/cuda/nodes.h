// Nodes of ranks on a GPU: raw pointers and a stream in, an error code out.
#pragma once

#include <cuda_runtime_api.h>

#include "../api.h"
#include "../problem/geometry.h"
#include "../problem/nodes.h"

namespace gpureduce::cuda {

// Writes the logarithms of the sums of exponentials of a problem's outputs to `out`, of dtype `t`. `sums` and `largest`, of
// float or double, are in the order of the outputs' numbers.
template <class A>
GPUREDUCE_API cudaError_t finish_exponents(const A* sums, const A* largest, const Problem& problem, void* out, DType t,
                                           cudaStream_t stream);

// Writes the results of `count` nodes, of `length` elements each, to `out`, of dtype `t`.
GPUREDUCE_API cudaError_t finish_nodes(const Nodes& nodes, Finish finish, int64_t length, void* out, DType t, int64_t count,
                                       cudaStream_t stream);

// Computes variances or standard deviations, and means, from moments of deviations from `first`.
GPUREDUCE_API cudaError_t finish_moments(const Moments* moments, const double* first, variance::Finishing finishing,
                                         double* variance, double* mean, int64_t count, cudaStream_t stream);

}  // namespace gpureduce::cuda
