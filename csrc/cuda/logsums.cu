#include "logsums.h"

#include "../finish.h"

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

template <class T>
__global__ void join(const LogSum<T>* left, const LogSum<T>* right, LogSum<T>* joined, int64_t count) {
  for_each(count, [&](int64_t i) { joined[i] = left[i] + right[i]; });
}

template <class T>
__global__ void finish(const LogSum<T>* pairs, double* results, int64_t count) {
  for_each(count, [&](int64_t i) { results[i] = finished(pairs[i], Finish::logarithm, 1); });
}

}  // namespace

template <class T>
cudaError_t join_logsums(const LogSum<T>* left, const LogSum<T>* right, LogSum<T>* joined, int64_t count, cudaStream_t stream) {
  if (count > 0) join<<<blocks_of(count), kThreads, 0, stream>>>(left, right, joined, count);
  return cudaGetLastError();
}

template <class T>
cudaError_t finish_logsums(const LogSum<T>* pairs, double* results, int64_t count, cudaStream_t stream) {
  if (count > 0) finish<<<blocks_of(count), kThreads, 0, stream>>>(pairs, results, count);
  return cudaGetLastError();
}

template cudaError_t join_logsums(const LogSum<float>*, const LogSum<float>*, LogSum<float>*, int64_t, cudaStream_t);
template cudaError_t join_logsums(const LogSum<double>*, const LogSum<double>*, LogSum<double>*, int64_t, cudaStream_t);
template cudaError_t finish_logsums(const LogSum<float>*, double*, int64_t, cudaStream_t);
template cudaError_t finish_logsums(const LogSum<double>*, double*, int64_t, cudaStream_t);

}  // namespace gpureduce::cuda
