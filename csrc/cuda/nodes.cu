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
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) f(i);
}

// Rounding to any dtype is a lot of code, which all kernels of this file share.
__device__ __noinline__ void put(void* out, int64_t index, DType t, Complex<double> x) { store(out, index, t, x); }

template <class T>
__global__ void join(const LogSum<T>* left, const LogSum<T>* right, LogSum<T>* joined, int64_t count) {
  for_each(count, [&](int64_t i) { joined[i] = left[i] + right[i]; });
}

__global__ void finish(Nodes nodes, Finish finish, int64_t length, void* out, DType t, int64_t count) {
  if (is_whole(nodes, finish)) for_each(count, [&](int64_t i) { store(out, i, t, nodes.at<int64_t>(i)); });
  else for_each(count, [&](int64_t i) { put(out, i, t, finished_node(nodes, i, finish, length)); });
}

__global__ void finish(const variance::Moments* moments, const double* first, variance::Finishing finishing, void* variance,
                       void* mean, DType t, int64_t count) {
  for_each(count, [&](int64_t i) {
    const auto found = finishing(moments[i], first[i]);
    put(variance, i, t, {found.variance, 0});
    put(mean, i, t, {found.mean, 0});
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

cudaError_t finish_moments(const variance::Moments* moments, const double* first, variance::Finishing finishing, void* variance,
                           void* mean, DType t, int64_t count, cudaStream_t stream) {
  if (count > 0) finish<<<blocks_of(count), kThreads, 0, stream>>>(moments, first, finishing, variance, mean, t, count);
  return cudaGetLastError();
}

}  // namespace gpureduce::cuda
