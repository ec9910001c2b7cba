// Rows that are read once: their elements stay in registers while the row is reduced, and are then applied and written.
//
// For example softmax of rows of 6000 bfloat16. A row has two chunks, and 64 threads per chunk take it, each 8 vectors of 8
// neighbours: thread 3 has the elements 24 to 31, 536 to 543, and so on, 512 apart. Each thread finds its largest element;
// shuffles and shared memory find the row's, m. The thread adds e^(x - m) of elements that are 512 apart, which makes 8 lanes,
// and joins the lanes, neighbours first; the warp joins its threads, the 4 warps of the row their sums. Last, the thread
// multiplies what it kept by 1 / S and writes 8 vectors. Vectors beyond element 5999 are predicated off, and count as padding.
#pragma once

#include "../early.cuh"
#include "../rows.h"
#include "../tree/joins.cuh"

namespace gpureduce::cuda {

struct RowsArgs {
  const char *x, *g, *weight, *bias;
  char *y, *mean, *r;
  RowDims along;
  int64_t rows, length;
  double eps;
  uint64_t policy;
  int threads;        // per row and block: a power of two
  int cluster;        // blocks per row
  bool vectors;       // rows are whole vectors at aligned addresses
  bool float_weight;  // weight and bias are float32
};

constexpr int kMostRowWarps = 32;

// Threads of a block at most: what its registers allow, where each thread holds 8 vectors per input.
template <RowFunction f, class T>
constexpr int kRowThreads = takes_grad(f) || sizeof(T) == 2 ? 512 : 1024;

// The sum, or another join, of the values of a row's threads, in every thread. `slots`: of this join alone, one per warp and
// row of the block, and then one per block of the cluster.
template <class Value>
struct RowJoin {
  Value (&slots)[kMostRowWarps];
  Value (&from_blocks)[kMaxCluster];
  int threads, cluster;

  template <class F>
  __device__ __forceinline__ Value operator()(Value v, Value none, F combine) const {
    const int in_warp = min(threads, kWarp);
    for (int step = 1; step < in_warp; step *= 2) v = combine(v, shuffle_xor(v, step));
    if (threads > kWarp) {
      const int lane = threadIdx.x % kWarp, warps = threads / kWarp, first = threadIdx.x / threads * warps;
      if (lane == 0) slots[threadIdx.x / kWarp] = v;
      __syncthreads();
      v = lane < warps ? slots[first + lane] : none;
      for (int step = 1; step < warps; step *= 2) v = combine(v, shuffle_xor(v, step));
      v = shuffle(v, 0);
    }
#if __CUDA_ARCH__ >= 900
    if (cluster > 1) {
      const int own = blockIdx.x % cluster;
      __cluster_barrier_wait();  // all blocks have begun, or have read what the last join sent
      if (threadIdx.x < cluster) *static_cast<Value*>(__cluster_map_shared_rank(&from_blocks[own], threadIdx.x)) = v;
      __cluster_barrier_arrive();
      __cluster_barrier_wait();
      v = from_blocks[0];
      Value values[kMaxCluster];
#pragma unroll
      for (int b = 0; b < kMaxCluster; ++b) values[b] = b < cluster ? from_blocks[b] : none;
#pragma unroll
      for (int step = 1; step < kMaxCluster; step *= 2) {
#pragma unroll
        for (int b = 0; b < kMaxCluster; b += 2 * step) values[b] = combine(values[b], values[b + step]);
      }
      v = values[0];
      __cluster_barrier_arrive();
    }
#endif
    return v;
  }
};

// V neighbours of which `count` exist; the others are `missing`.
template <class T, int V>
__device__ __forceinline__ Vector<T, V> load_neighbours(const T* p, int64_t count, bool vectors, T missing, uint64_t policy) {
  Vector<T, V> x;
#pragma unroll
  for (int j = 0; j < V; ++j) x.set(j, missing);
  if (vectors) return load_vector_if<T, V>(count > 0, p, policy, x.bits);
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (j < count) x.set(j, p[j]);
  return x;
}

// The same of weights, which stay in the caches, as numbers.
template <class T, class A, int V>
__device__ __forceinline__ void load_weights(A (&to)[V], const char* from, int64_t first, int64_t count, bool vectors,
                                             bool is_float, A missing, uint64_t policy) {
  const auto load = [&](auto zero) {
    using W = decltype(zero);
    constexpr int N = granule_values<W>(V);
#pragma unroll
    for (int i = 0; i < V; i += N) {
      const W* const p = reinterpret_cast<const W*>(from) + first + i;
      const auto x = load_neighbours<W, N>(p, count - i, vectors, element_of<W>(static_cast<float>(missing)), policy);
#pragma unroll
      for (int j = 0; j < N; ++j) to[i + j] = static_cast<A>(value(x[j]));
    }
  };
  if (!from) {
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = missing;
  } else if (!std::is_same_v<T, float> && is_float) {
    load(float{});
  } else {
    load(T{});
  }
}

// What stands for an element that does not exist, so that its addend changes no bit of the sum: e^-inf and 0 * 0 are +0, and
// sums of exponentials and squares are never -0; -0.0 * 1 is the identity.
template <RowFunction f, class T>
__device__ __forceinline__ T missing_x() {
  return element_of<T>(takes_largest(f) ? -INFINITY : f == RowFunction::rms_norm ? 0.0f : 1.0f);
}

template <RowFunction f, class T, class R, int D>
__global__ void __launch_bounds__(kRowThreads<f, T>) rows_kernel(const __grid_constant__ RowsArgs a) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Sum = decltype(row_addend<f, A>({}, {}, A(0)));
  constexpr int V = kGranule / sizeof(T), kUnits = kLanes / V;
  __shared__ A largest_slots[kMostRowWarps], largest_of_blocks[kMaxCluster];
  __shared__ __align__(16) char sum_slots[(kMostRowWarps + kMaxCluster) * sizeof(Sum)];
#if __CUDA_ARCH__ >= 900
  if (a.cluster > 1) __cluster_barrier_arrive_relaxed();
#endif
  wait_for_previous_kernel();
  allow_next_kernel();

  const int thread = threadIdx.x % a.threads, part = blockIdx.x % a.cluster;
  const int64_t row_index =
      int64_t{blockIdx.x / static_cast<uint32_t>(a.cluster)} * (blockDim.x / a.threads) + threadIdx.x / a.threads;
  const bool there = row_index < a.rows;
  const int64_t index = there ? row_index : 0;
  const int unit = part * a.threads + thread;
  const int64_t first = int64_t{unit / kUnits} * kChunk + unit % kUnits * V;
  const int64_t left = there ? a.length - first : 0;

  const T* const row_x = reinterpret_cast<const T*>(a.x + a.along.offset(kRowX, index));
  T missing = missing_x<f, T>();
  A first_element{};
  if constexpr (f == RowFunction::layer_norm) {
    missing = row_x[0];
    first_element = static_cast<A>(value(missing));
  }
  Vector<T, V> x[D], g[takes_grad(f) ? D : 1];
#pragma unroll
  for (int d = 0; d < D; ++d) {
    const int64_t here = left - d * kLanes;
    x[d] = load_neighbours<T, V>(row_x + first + d * kLanes, here, a.vectors, missing, a.policy);
  }
  if constexpr (takes_grad(f)) {
    const T* const row_g = reinterpret_cast<const T*>(a.g + a.along.offset(kRowG, index));
#pragma unroll
    for (int d = 0; d < D; ++d) {
      const int64_t here = left - d * kLanes;
      g[d] = load_neighbours<T, V>(row_g + first + d * kLanes, here, a.vectors, element_of<T>(-0.0f), a.policy);
    }
  }

  RowNumbers<A> row;
  if constexpr (is_norm(f) && takes_grad(f)) {
    if constexpr (has_mean(f)) row.mean = reinterpret_cast<const A*>(a.mean)[index];
    row.r = reinterpret_cast<const A*>(a.r)[index];
  }
  if constexpr (takes_largest(f)) {
    A largest = -INFINITY;
#pragma unroll
    for (int d = 0; d < D; ++d) {
#pragma unroll
      for (int j = 0; j < V; ++j) largest = larger(largest, static_cast<A>(value(x[d][j])));
    }
    const RowJoin<A> join{largest_slots, largest_of_blocks, a.threads, a.cluster};
    row.mean = join(largest, A(-INFINITY), [](A p, A q) { return larger(p, q); });
  }

  // Elements of vector d, with weights where the function has them.
  const auto elements = [&](int d, RowElement<A>(&e)[V]) {
    A w[V], b[V];
    if constexpr (is_norm(f)) {
      const int64_t here = left - d * kLanes;
      load_weights<T>(w, a.weight, first + d * kLanes, here, a.vectors, a.float_weight, A(1), a.policy);
      if constexpr (f == RowFunction::layer_norm)
        load_weights<T>(b, a.bias, first + d * kLanes, here, a.vectors, a.float_weight, A(0), a.policy);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      e[j].x = static_cast<A>(value(x[d][j]));
      if constexpr (takes_grad(f)) e[j].g = static_cast<A>(value(g[d][j]));
      if constexpr (is_norm(f)) e[j].w = w[j];
      if constexpr (f == RowFunction::layer_norm) e[j].b = b[j];
      if constexpr (f == RowFunction::layer_norm_backward)  // (mean - mean) * r is +0, and -0.0 * +0 the identity
        if (d * kLanes + j >= left) e[j].x = row.mean;
    }
  };

  constexpr bool kKeeps = f == RowFunction::softmax;  // the exponentials
  A kept[kKeeps ? D : 1][V];
  Sum lanes[V];
#pragma unroll
  for (int d = 0; d < D; ++d) {
    RowElement<A> e[V];
    if constexpr (takes_grad(f)) {
      elements(d, e);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) e[j].x = static_cast<A>(value(x[d][j]));
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const Sum addend = row_addend<f>(e[j], row, first_element);
      if constexpr (kKeeps) kept[d][j] = addend;
      lanes[j] = d == 0 ? addend : lanes[j] + addend;
    }
  }
  Sum(&slots)[kMostRowWarps] = *reinterpret_cast<Sum(*)[kMostRowWarps]>(sum_slots);
  Sum(&of_blocks)[kMaxCluster] = *reinterpret_cast<Sum(*)[kMaxCluster]>(sum_slots + sizeof(slots));
  const RowJoin<Sum> join{slots, of_blocks, a.threads, a.cluster};
  const Sum sum = join(join_neighbours(lanes), no_addend<Sum>(), [](Sum p, Sum q) { return p + q; });
#if __CUDA_ARCH__ >= 900
  if (a.cluster > 1) __cluster_barrier_wait();
#endif
  finish_row<f>(row, sum, first_element, a.length, a.eps);

  if (!there) return;
  if constexpr (is_norm(f) && !takes_grad(f)) {
    if (thread == 0 && part == 0) {
      if (has_mean(f) && a.mean) reinterpret_cast<A*>(a.mean)[index] = row.mean;
      if (a.r) reinterpret_cast<A*>(a.r)[index] = row.r;
    }
  }
  R* const row_y = reinterpret_cast<R*>(a.y + a.along.offset(kRowY, index)) + first;
#pragma unroll
  for (int d = 0; d < D; ++d) {
    const int64_t here = left - d * kLanes;
    if (here <= 0) continue;
    RowElement<A> e[V];
    if constexpr (!kKeeps) elements(d, e);
    R y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (kKeeps) y[j] = round_to<R>(kept[d][j] * row.r);
      else y[j] = round_to<R>(row_applied<f>(e[j], row));
    }
    if (a.vectors) {
      store_granules([&](int j) { return row_y + d * kLanes + j; }, y);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j)
        if (j < here) row_y[d * kLanes + j] = y[j];
    }
  }
}

// Whether an operand's rows have their elements side by side.
inline bool is_contiguous(const RowsCall& call, RowOperandName name) {
  if (!call.operands[name].data || call.across.rank == 0) return true;
  return call.across.rank == 1 && call.across.dims[0].strides[name] == info(call.operands[name].dtype).size;
}
inline bool is_aligned(const RowsCall& call, RowOperandName name) {
  if (!call.operands[name].data) return true;
  uint64_t all = reinterpret_cast<uintptr_t>(call.operands[name].data);
  for (int d = 0; d < call.along.rank; ++d) all |= static_cast<uint64_t>(call.along.dims[d].strides[name]);
  return all % kGranule == 0;
}

template <RowFunction f, class T, class R>
cudaError_t start_rows(const RowsCall& call, const Device& device, cudaStream_t stream) {
  constexpr int V = kGranule / sizeof(T), kUnits = kLanes / V, kMost = kRowThreads<f, T>;
  const int64_t n = call.length, chunks = (n + kChunk - 1) / kChunk;
  RowsArgs a{};
  const auto data = [&](RowOperandName name) { return call.operands[name].data; };
  a.x = data(kRowX);
  a.g = data(kRowG);
  a.weight = data(kRowWeight);
  a.bias = data(kRowBias);
  a.y = data(kRowY);
  a.mean = static_cast<char*>(call.mean);
  a.r = static_cast<char*>(call.r);
  a.along = call.along;
  a.rows = call.rows;
  a.length = n;
  a.eps = call.eps;
  const DType weight = call.operands[kRowWeight].data ? call.operands[kRowWeight].dtype : call.operands[kRowBias].dtype;
  a.float_weight = weight == DType::Float;
  a.vectors = n % V == 0;
  for (RowOperandName name : {kRowX, kRowG, kRowWeight, kRowBias, kRowY}) a.vectors = a.vectors && is_aligned(call, name);
  const int64_t bytes = call.rows * n * static_cast<int64_t>(sizeof(T)) * (takes_grad(f) ? 2 : 1);
  a.policy = l2_policy(bytes > device.l2_bytes / 2);

  const auto power_of_two = [](int64_t least) {
    int64_t n = 1;
    while (n < least) n *= 2;
    return n;
  };
  const int64_t all = n <= kLanes ? power_of_two((n + V - 1) / V) : power_of_two(chunks) * kUnits;
  a.threads = static_cast<int>(std::min<int64_t>(all, kMost));
  a.cluster = static_cast<int>(all / a.threads);
  if (a.cluster > 1 && (a.cluster > kMaxCluster || !device.clusters)) return kNoKernel;
  const int per_block = std::max(1, 128 / a.threads);
  const int64_t blocks = (call.rows + per_block - 1) / per_block * a.cluster;
  if (blocks >= kMaxGrid) return kNoKernel;
  Grid grid;
  grid.x = static_cast<uint32_t>(blocks);
  grid.cluster = static_cast<uint32_t>(a.cluster);
  const dim3 threads(per_block * a.threads);
  const Queue queue{stream, device.early};
  if (n <= kLanes) return start_kernel(queue, grid, threads, 0, rows_kernel<f, T, R, 1>, a);
  if (n <= 4 * kLanes) return start_kernel(queue, grid, threads, 0, rows_kernel<f, T, R, 4>, a);
  return start_kernel(queue, grid, threads, 0, rows_kernel<f, T, R, 8>, a);
}

// Whether the kernels of elements T and results R take a call.
template <class T, class R>
bool takes_rows(const RowsCall& call, DType t, DType r) {
  const auto is = [&](RowOperandName name, DType dtype) {
    return !call.operands[name].data || call.operands[name].dtype == dtype;
  };
  for (RowOperandName name : {kRowX, kRowG, kRowWeight, kRowBias, kRowY})
    if (!is_contiguous(call, name)) return false;
  const bool weights = (is(kRowWeight, t) && is(kRowBias, t)) || (is(kRowWeight, DType::Float) && is(kRowBias, DType::Float));
  return is(kRowX, t) && is(kRowG, t) && weights && call.operands[kRowY].data && is(kRowY, r);
}

}  // namespace gpureduce::cuda
