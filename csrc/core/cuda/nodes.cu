#include "nodes.h"

#include "../numeric/exponents.h"
#include "../problem/nest.h"

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

template <class A>
__global__ void finish(const A* sums, const A* largest, const __grid_constant__ Nest<kMaxRank> kept, void* out, DType t,
                       int64_t count) {
  for_each(count, [&](int64_t i) { store(out, kept.at(i).out, t, logarithm_of_sum(sums[i], largest[i])); });
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

template <class A>
cudaError_t finish_exponents(const A* sums, const A* largest, const Problem& p, void* out, DType t, cudaStream_t stream) {
  if (p.outputs > 0)
    finish<<<blocks_of(p.outputs), kThreads, 0, stream>>>(sums, largest, kept_nest<kMaxRank>(p), out, t, p.outputs);
  return cudaGetLastError();
}

template cudaError_t finish_exponents(const float*, const float*, const Problem&, void*, DType, cudaStream_t);
template cudaError_t finish_exponents(const double*, const double*, const Problem&, void*, DType, cudaStream_t);

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
