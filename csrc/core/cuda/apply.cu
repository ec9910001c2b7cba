// Formulas (apply.h): a thread takes a vector of neighbours. For example the gradient of the norms of (4096, 1000) float32
// rows: x has strides of (4000, 4) bytes, so a thread loads 4 elements at once. g and r have the last stride 0, so it loads one
// number of each.
#include "apply.h"

#include <algorithm>

#include "any.cuh"
#include "early.cuh"
#include "launch.h"
#include "tree/joins.cuh"

namespace gpureduce::cuda {

namespace {

constexpr int kThreads = 256, kBlocksOfEach = 8;  // per block; blocks per multiprocessor

struct Args {
  Formula formula;
  double number;
  uint32_t units;
  Nest<kMaxRank> nest;  // used only for its divisions
  Apply::Operand operands[2 + kOthers];
};

// T: the dtype of elements and results, which lie in whole vectors; or void for any dtypes, one element at a time.
template <class T, class A, int V>
__global__ void __launch_bounds__(kThreads) apply_kernel(const __grid_constant__ Args a) {
  const int inner = a.nest.rank - 1;
  for (uint32_t unit = blockIdx.x * kThreads + threadIdx.x; unit < a.units; unit += gridDim.x * kThreads) {
    int offsets[2 + kOthers] = {};
    uint32_t index = unit * V;
#pragma unroll 1
    for (int d = inner; d >= 0; --d) {
      const uint32_t q = d > 0 ? a.nest.dims[d].divide(index) : 0;
      const int at = static_cast<int>(index - q * static_cast<uint32_t>(a.nest.dims[d].size));
#pragma unroll
      for (int i = 0; i < 2 + kOthers; ++i) offsets[i] += at * a.operands[i].strides[d];
      index = q;
    }
    const auto numbers = [&](int i) {
      const Apply::Operand& operand = a.operands[i];
      if (operand.data) return read_any<A, V>(operand.data + offsets[i], operand.dtype, operand.strides[inner]);
      Numbers<A, V> same;
#pragma unroll
      for (int j = 0; j < V; ++j) same.of[j] = static_cast<A>(missing(a.formula, i - 2));
      return same;
    };
    Numbers<A, V> x;
    if constexpr (std::is_void_v<T>) {
      x = numbers(1);
    } else {
      const auto vector = *reinterpret_cast<const Vector<T, V>*>(a.operands[1].data + offsets[1]);
#pragma unroll
      for (int j = 0; j < V; ++j) x.of[j] = operand<A>(vector[j]);
    }
    const Numbers<A, V> g = numbers(2), r = numbers(3), m = numbers(4);
    A y[V];
    with_formula(a.formula, [&](auto f) {
#pragma unroll
      for (int j = 0; j < V; ++j)
        y[j] = applied<decltype(f)::value>(x.of[j], g.of[j], r.of[j], m.of[j], static_cast<A>(a.number));
    });
    char* const to = a.operands[0].data + offsets[0];
    if constexpr (std::is_void_v<T>) {
      write_any(to, a.operands[0].dtype, y[0]);
    } else {
      Vector<T, V> results;
#pragma unroll
      for (int j = 0; j < V; ++j) results.set(j, round_to<T>(y[j]));
      *reinterpret_cast<Vector<T, V>*>(to) = results;
    }
  }
}

// True if elements and results lie in whole aligned vectors of V, of `bytes` bytes each.
bool has_vectors(const Apply& call, int bytes, int V) {
  const int inner = call.rank - 1;
  if (call.rank == 0 || call.sizes[inner] % V != 0) return false;
  for (int i = 0; i < 2; ++i) {
    const Apply::Operand& operand = call.operands[i];
    if (operand.strides[inner] != bytes || reinterpret_cast<uintptr_t>(operand.data) % (bytes * V) != 0) return false;
    for (int d = 0; d < inner; ++d)
      if (operand.strides[d] % (bytes * V) != 0) return false;
  }
  return true;
}

template <class T, class A, int V>
cudaError_t start(const Apply& call, cudaStream_t stream) {
  Args args;
  args.formula = call.formula;
  args.number = call.number;
  args.units = call.count / V;
  for (int d = 0; d < call.rank; ++d) args.nest.add(call.sizes[d], 0, 0);
  for (int i = 0; i < 2 + kOthers; ++i) args.operands[i] = call.operands[i];
  const uint32_t needed = (args.units + kThreads - 1) / kThreads;
  const uint32_t blocks = std::min(needed, static_cast<uint32_t>(call.multiprocessors * kBlocksOfEach));
  apply_kernel<T, A, V><<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

template <class T>
cudaError_t start_typed(const Apply& call, cudaStream_t stream) {
  constexpr int V = kGranule / sizeof(T);
  if (has_vectors(call, sizeof(T), V)) {
    if constexpr (sizeof(T) < 8)
      if (!call.wide) return start<T, float, V>(call, stream);
    if (call.wide) return start<T, double, V>(call, stream);
  }
  return call.wide ? start<void, double, 1>(call, stream) : start<void, float, 1>(call, stream);
}

}  // namespace

cudaError_t apply(const Apply& call, cudaStream_t stream) {
  if (call.count == 0) return cudaSuccess;
  const DType dtype = call.operands[1].dtype;
  if (call.operands[0].dtype == dtype) {
    if (dtype == DType::Float) return start_typed<float>(call, stream);
    if (dtype == DType::Half) return start_typed<Half>(call, stream);
    if (dtype == DType::BFloat16) return start_typed<BFloat16>(call, stream);
    if (dtype == DType::Double) return start_typed<double>(call, stream);
  }
  return call.wide ? start<void, double, 1>(call, stream) : start<void, float, 1>(call, stream);
}

}  // namespace gpureduce::cuda
