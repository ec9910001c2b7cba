// Pairs of logsumexp, one by one, on a GPU: raw pointers and a stream in, an error code out.
#pragma once

#include <cuda_runtime_api.h>

#include "../exponential.h"

namespace gpureduce::cuda {

// joined[i] = left[i] + right[i], of `count` pairs of float or double.
template <class T>
cudaError_t join_logsums(const LogSum<T>* left, const LogSum<T>* right, LogSum<T>* joined, int64_t count, cudaStream_t stream);

// results[i] = largest + log(sum) of pairs[i].
template <class T>
cudaError_t finish_logsums(const LogSum<T>* pairs, double* results, int64_t count, cudaStream_t stream);

}  // namespace gpureduce::cuda
