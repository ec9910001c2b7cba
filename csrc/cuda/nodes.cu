#include "nodes.h"

namespace gpureduce::cuda {

namespace {

constexpr int kThreads = 256;

unsigned blocks_of(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
}

template <class F>
__device__ __forceinline__ void for_each(int64_t count, F f) {
#pragma unroll 1
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) f(i);
}

template <class T>
__global__ void join(const LogSum<T>* left, const LogSum<T>* right, LogSum<T>* joined, int64_t count) {
  for_each(count, [&](int64_t i) { joined[i] = left[i] + right[i]; });
}

__global__ void finish(Nodes nodes, Finish finish, int64_t length, void* out, DType t, int64_t count) {
  for_each(count, [&](int64_t i) { store_node(nodes, i, finish, length, out, t); });
}

__global__ void finish(const Moments* moments, const double* first, variance::Finishing finishing, double* variance,
                       double* mean, int64_t count) {
  for_each(count, [&](int64_t i) {
    const auto found = finishing(moments[i], first[i]);
    variance[i] = found.variance;
    mean[i] = found.mean;
  });
}

}  // namespace

template <class T>
cudaError_t join_logsums(const LogSum<T>* left, const LogSum<T>* right, LogSum<T>* joined, int64_t count, cudaStream_t stream) {
  if (count > 0) join<<<blocks_of(count), kThreads, 0, stream>>>(left, right, joined, count);
  return cudaGetLastError();
}

template cudaError_t join_logsums(const LogSum<float>*, const LogSum<float>*, LogSum<float>*, int64_t, cudaStream_t);
template cudaError_t join_logsums(const LogSum<double>*, const LogSum<double>*, LogSum<double>*, int64_t, cudaStream_t);

cudaError_t finish_nodes(const Nodes& nodes, Finish how, int64_t length, void* out, DType t, int64_t count,
                         cudaStream_t stream) {
  if (count > 0) finish<<<blocks_of(count), kThreads, 0, stream>>>(nodes, how, length, out, t, count);
  return cudaGetLastError();
}

cudaError_t finish_moments(const Moments* moments, const double* first, variance::Finishing finishing, double* variance,
                           double* mean, int64_t count, cudaStream_t stream) {
  if (count > 0) finish<<<blocks_of(count), kThreads, 0, stream>>>(moments, first, finishing, variance, mean, count);
  return cudaGetLastError();
}

}  // namespace gpureduce::cuda
