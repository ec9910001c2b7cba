// Functions that keep their input's shape: rows that no compiled kernel takes, and the gradients of weights.
#include "rows.h"

#include <algorithm>

#include "early.cuh"
#include "kernels/rows.cuh"
#include "tree/joins.cuh"

namespace gpureduce::cuda {

namespace {

// An element of any real dtype. A call, so that its code stands once in a kernel.
template <class A>
__device__ __noinline__ A read_any(const char* from, DType dtype) {
  switch (dtype) {
#define GPUREDUCE_READ(name, type, kind, accumulator, wide, family)                                                \
  case DType::name:                                                                                                \
    if constexpr (Kind::kind != Kind::complex) return static_cast<A>(value(*reinterpret_cast<const type*>(from))); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_READ)
#undef GPUREDUCE_READ
  }
  return A{};
}

template <class A>
__device__ __noinline__ void write_any(char* to, DType dtype, A y) {
  switch (dtype) {
#define GPUREDUCE_WRITE(name, type, kind, accumulator, wide, family)                              \
  case DType::name:                                                                               \
    if constexpr (Kind::kind == Kind::floating) *reinterpret_cast<type*>(to) = round_to<type>(y); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_WRITE)
#undef GPUREDUCE_WRITE
  }
}

constexpr int kAnyThreads = 512;

// Rows of any dtype, strides and length, read up to three times. For example a row of 10,000 elements: 512 threads, a lane
// each, add the elements of a chunk that are 512 apart, and join their lanes; the three chunks' sums wait in the row's tree.
template <RowFunction f, class A>
__global__ void __launch_bounds__(kAnyThreads) any_rows_kernel(const __grid_constant__ RowsCall call, int threads) {
  using Sum = decltype(row_addend<f, A>({}, {}, A(0)));
  __shared__ A largest_slots[kMostRowWarps];
  __shared__ __align__(16) char sum_slots[kMostRowWarps * sizeof(Sum)];
  wait_for_previous_kernel();
  allow_next_kernel();
  const int thread = threadIdx.x % threads;
  const int64_t row_index = int64_t{blockIdx.x} * (blockDim.x / threads) + threadIdx.x / threads;
  const bool there = row_index < call.rows;
  const int64_t index = there ? row_index : 0, length = call.length;

  const char* row_data[kRowOperands];
#pragma unroll
  for (int o = 0; o < kRowOperands; ++o)
    row_data[o] = call.operands[o].data + call.along.offset(static_cast<RowOperandName>(o), index);
  const auto number = [&](RowOperandName name, int64_t i) {
    return read_any<A>(row_data[name] + call.across.offset(name, i), call.operands[name].dtype);
  };
  const auto element = [&](int64_t i) {
    RowElement<A> e{number(kRowX, i), 0, 1, 0};
    if constexpr (takes_grad(f)) e.g = number(kRowG, i);
    if constexpr (f == RowFunction::log_prob_backward)
      e.g = call.target[index] == i ? static_cast<const A*>(call.row_grad)[index] : A(0);
    if (is_norm(f) && call.operands[kRowWeight].data) e.w = number(kRowWeight, i);
    if (f == RowFunction::layer_norm && call.operands[kRowBias].data) e.b = number(kRowBias, i);
    return e;
  };

  RowNumbers<A> row;
  const A first = number(kRowX, 0);
  if constexpr (reads_numbers(f)) {
    if constexpr (has_mean(f)) row.mean = static_cast<const A*>(call.mean)[index];
    row.r = static_cast<const A*>(call.r)[index];
  }
  if constexpr (f == RowFunction::log_prob_backward) row.share = static_cast<const A*>(call.row_grad)[index];
  if constexpr (takes_largest(f)) {
    A largest = -INFINITY;
    for (int64_t i = thread; i < length; i += threads) largest = larger(largest, number(kRowX, i));
    row.mean = join_row(largest, A(-INFINITY), threads, largest_slots, [](A p, A q) { return larger(p, q); });
  }
  if constexpr (has_sum(f)) {
    Sum(&slots)[kMostRowWarps] = *reinterpret_cast<Sum(*)[kMostRowWarps]>(sum_slots);
    Sum waiting[kChunkLevels];
    int64_t chunks = 0;
    for (int64_t chunk = 0; chunk < length; chunk += kChunk, ++chunks) {
      Sum lane = no_addend<Sum>();
      const int64_t end = min(length, chunk + kChunk);
      for (int64_t i = chunk + thread; i < end; i += kLanes) {
        const Sum addend = row_addend<f>(element(i), row, first);
        lane = i < chunk + kLanes ? addend : lane + addend;
      }
      __syncthreads();  // the chunk before has been read from the slots
      Sum sum = join_row(lane, no_addend<Sum>(), threads, slots, [](Sum p, Sum q) { return p + q; });
      carry(waiting, sum, chunks);
    }
    finish_row<f>(row, joined(waiting, chunks, no_addend<Sum>()), first, length, call.eps);
  }

  if (!there) return;
  if constexpr (writes_numbers(f)) {
    if (thread == 0) {
      if (has_mean(f) && call.mean) static_cast<A*>(call.mean)[index] = row.mean;
      if (call.r) static_cast<A*>(call.r)[index] = row.r;
    }
  }
  if constexpr (!has_result(f)) return;
  for (int64_t i = thread; i < length; i += threads)
    write_any(const_cast<char*>(row_data[kRowY]) + call.across.offset(kRowY, i), call.operands[kRowY].dtype,
              row_applied<f>(element(i), row));
}

template <RowFunction f, class A>
cudaError_t start_any(const RowsCall& call, const Device& device, cudaStream_t stream) {
  int threads = 1;
  while (threads < call.length && threads < kAnyThreads) threads *= 2;
  const int per_block = std::max(1, 128 / threads);
  Grid grid;
  const int64_t blocks = (call.rows + per_block - 1) / per_block;
  if (blocks >= kMaxGrid) return cudaErrorInvalidConfiguration;
  grid.x = static_cast<uint32_t>(blocks);
  return start_kernel({stream, device.early}, grid, dim3(per_block * threads), 0, any_rows_kernel<f, A>, call, threads);
}

// --- steps ------------------------------------------------------------------------------------------------------------------

constexpr int kStepThreads = 256;

unsigned blocks_of(int64_t count) {
  const int64_t blocks = (count + kStepThreads - 1) / kStepThreads;
  return static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
}

// An element a thread.
template <RowFunction f, class A>
__global__ void __launch_bounds__(kStepThreads) step_kernel(const __grid_constant__ RowStepCall step) {
  const RowsCall& call = step.call;
  const int64_t count = call.rows * call.length;
#pragma unroll 1
  for (int64_t at = int64_t{blockIdx.x} * kStepThreads + threadIdx.x; at < count; at += int64_t{gridDim.x} * kStepThreads) {
    const int64_t index = at / call.length, i = at % call.length;
    const auto number = [&](RowOperandName name, A missing) {
      const RowOperand& from = call.operands[name];
      if (!from.data) return missing;
      return read_any<A>(from.data + call.along.offset(name, index) + call.across.offset(name, i), from.dtype);
    };
    const auto of_row = [&](const void* numbers) { return numbers ? static_cast<const A*>(numbers)[index] : A(0); };
    const RowNumbers<A> row{of_row(call.mean), of_row(call.r), of_row(step.first_share), of_row(step.share)};
    RowElement<A> e{number(kRowX, A(0)), number(kRowG, A(0)), number(kRowWeight, A(1)), number(kRowBias, A(0))};
    if (call.target) e.g = call.target[index] == i ? row.share : A(0);
    char* const to = call.operands[kRowY].data + call.along.offset(kRowY, index) + call.across.offset(kRowY, i);
    write_any(to, call.operands[kRowY].dtype, row_step<f>(step.step, e, row));
  }
}

template <RowFunction f, class A>
__global__ void __launch_bounds__(kStepThreads) finish_kernel(const __grid_constant__ RowFinishCall call) {
#pragma unroll 1
  for (int64_t i = int64_t{blockIdx.x} * kStepThreads + threadIdx.x; i < call.rows; i += int64_t{gridDim.x} * kStepThreads)
    store_numbers<f>(row_numbers<f, A>(call.sum, call.other, i, call.length, call.eps), call.first, call.second, i);
}

// --- gradients of weights ---------------------------------------------------------------------------------------------------

constexpr int kColumnThreads = 32, kRowGroups = 8;    // of a block
constexpr int kGroupLanes = 4;                        // lanes of rows that a thread joins
constexpr int kUnitLanes = kGroupLanes * kRowGroups;  // and a block
constexpr int kJoinRuns = 32;                         // runs of partial sums that a block joins

template <class A, int V>
struct ColumnSums {
  TwoSums<A> of[V];

  __device__ __forceinline__ ColumnSums operator+(const ColumnSums& right) const {
    ColumnSums sums;
#pragma unroll
    for (int j = 0; j < V; ++j) sums.of[j] = of[j] + right.of[j];
    return sums;
  }
};

struct WeightsArgs {
  RowsCall call;
  char* partials;  // per block along the rows, column by column
  bool has_weight;
  uint64_t policy;
};

// The elements of a lane's rows: `row` and those 512, 1024, ... after it, all in flight at once.
template <class T, class A, int V>
__device__ __forceinline__ void load_rows(const RowsCall& call, const WeightsArgs& a, bool there, int64_t row, int64_t column,
                                          A (&x)[kDepth][V], A (&g)[kDepth][V], A (&mean)[kDepth], A (&r)[kDepth]) {
  const auto exists = [&](int d) { return there && row + d * kLanes < call.rows; };
  const auto from = [&](RowOperandName name, int d) {
    return call.operands[name].data + call.along.offset(name, row + d * kLanes);
  };
  if constexpr (std::is_void_v<T>) {
    for (int d = 0; d < kDepth; ++d) {
      if (!exists(d)) break;
      g[d][0] = read_any<A>(from(kRowG, d) + call.across.offset(kRowG, column), call.operands[kRowG].dtype);
      x[d][0] = A(0);
      if (a.has_weight) x[d][0] = read_any<A>(from(kRowX, d) + call.across.offset(kRowX, column), call.operands[kRowX].dtype);
    }
  } else {
    Vector<T, V> own_x[kDepth], own_g[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const auto vector_if = [&](bool wanted, RowOperandName name) {
        return load_vector_if<T, V>(wanted, reinterpret_cast<const T*>(from(name, d)) + column, a.policy,
                                    typename Vector<T, V>::Bits{});
      };
      own_g[d] = vector_if(exists(d), kRowG);
      own_x[d] = vector_if(exists(d) && a.has_weight, kRowX);
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        g[d][j] = static_cast<A>(value(own_g[d][j]));
        x[d][j] = static_cast<A>(value(own_x[d][j]));
      }
    }
  }
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    mean[d] = call.mean && exists(d) ? static_cast<const A*>(call.mean)[row + d * kLanes] : A(0);
    r[d] = call.r && exists(d) ? static_cast<const A*>(call.r)[row + d * kLanes] : A(0);
  }
}

// The rows' sums of V neighbouring columns per thread. For example 16,384 rows: 4 chunks of 512 lanes. A thread takes lanes 4
// to 7 of a chunk: it adds rows 4, 516, ... of the first one, and joins the four; the block joins its 8 threads of a column, so
// a chunk has 16 partial sums per column. T: the dtype of all operands, side by side in vectors; or void for any.
template <class T, class A, int V>
__global__ void __launch_bounds__(kColumnThreads* kRowGroups) weights_kernel(const __grid_constant__ WeightsArgs a) {
  using Sums = ColumnSums<A, V>;
  __shared__ __align__(16) char shared[kRowGroups / 2 * kColumnThreads * sizeof(Sums)];
  Sums* const waiting_sums = reinterpret_cast<Sums*>(shared);
  wait_for_previous_kernel();
  allow_next_kernel();
  const RowsCall& call = a.call;
  const int64_t column = (int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * V;
  const bool there = column < call.length;
  constexpr int kUnitsOfChunk = kLanes / kUnitLanes;
  const int64_t chunk = blockIdx.y / kUnitsOfChunk * int64_t{kChunk};
  const int64_t lane = blockIdx.y % kUnitsOfChunk * kUnitLanes + threadIdx.y * kGroupLanes;
  Sums none;
#pragma unroll
  for (int j = 0; j < V; ++j) none.of[j] = no_addend<TwoSums<A>>();
  Sums group[kGroupLanes];
#pragma unroll
  for (int l = 0; l < kGroupLanes; ++l) {
    A x[kDepth][V], g[kDepth][V], mean[kDepth], r[kDepth];
    load_rows<T>(call, a, there, chunk + lane + l, column, x, g, mean, r);
    group[l] = none;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (!there || chunk + lane + l + d * kLanes >= call.rows) continue;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const TwoSums<A> addend{weight_addend(x[d][j], g[d][j], mean[d], r[d]), g[d][j]};
        group[l].of[j] = d == 0 ? addend : group[l].of[j] + addend;
      }
    }
  }
  Sums sums = join_neighbours(group);
  for (int step = 1; step < kRowGroups; step *= 2) {
    __syncthreads();
    if (threadIdx.y % (2 * step) == step) waiting_sums[threadIdx.y / (2 * step) * kColumnThreads + threadIdx.x] = sums;
    __syncthreads();
    if (threadIdx.y % (2 * step) == 0) sums = sums + waiting_sums[threadIdx.y / (2 * step) * kColumnThreads + threadIdx.x];
  }
  if (threadIdx.y != 0) return;
  TwoSums<A>* const to = reinterpret_cast<TwoSums<A>*>(a.partials) + blockIdx.y * call.length + column;
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (column + j < call.length) to[j] = sums.of[j];
}

// Joins the partial sums of 32 columns: a thread a run of them, whose length is a power of two, then the block its threads.
template <class A>
__global__ void __launch_bounds__(kColumnThreads* kJoinRuns)
    join_weights_kernel(const TwoSums<A>* partials, int64_t columns, int64_t count, int64_t run, A* weight, A* bias) {
  __shared__ TwoSums<A> sums[kJoinRuns][kColumnThreads];
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t column = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x, begin = threadIdx.y * run;
  const int64_t left = column < columns ? min(run, count - begin) : 0;
  TwoSums<A> waiting[kChunkLevels];
#pragma unroll 8
  for (int64_t i = 0; i < left; ++i) {
    TwoSums<A> sum = partials[(begin + i) * columns + column];
    carry(waiting, sum, i);
  }
  sums[threadIdx.y][threadIdx.x] = left > 0 ? joined(waiting, left, no_addend<TwoSums<A>>()) : no_addend<TwoSums<A>>();
  for (int step = 1; step < kJoinRuns; step *= 2) {
    __syncthreads();
    if (threadIdx.y % (2 * step) == 0)
      sums[threadIdx.y][threadIdx.x] = sums[threadIdx.y][threadIdx.x] + sums[threadIdx.y + step][threadIdx.x];
  }
  if (threadIdx.y != 0 || column >= columns) return;
  if (weight) weight[column] = sums[0][threadIdx.x].first;
  if (bias) bias[column] = sums[0][threadIdx.x].second;
}

int64_t units_of(const RowsCall& call) {
  constexpr int kUnitsOfChunk = kLanes / kUnitLanes;
  const int64_t chunks = call.rows / kChunk, rest = call.rows % kChunk;
  return chunks * kUnitsOfChunk + (std::min<int64_t>(rest, kLanes) + kUnitLanes - 1) / kUnitLanes;
}

template <class T, class A, int V>
cudaError_t start_weights(const RowWeightsCall& weights, void* workspace, const Device& device, cudaStream_t stream) {
  const RowsCall& call = weights.call;
  const bool streams = call.rows * call.length * 4 > device.l2_bytes;
  const WeightsArgs args{call, static_cast<char*>(workspace), weights.weight != nullptr, l2_policy(streams)};
  const int64_t units = units_of(call), side = kColumnThreads * V;
  Grid grid;
  grid.x = static_cast<uint32_t>((call.length + side - 1) / side);
  grid.y = static_cast<uint32_t>(units);
  const Queue queue{stream, device.early};
  const cudaError_t error = start_kernel(queue, grid, dim3(kColumnThreads, kRowGroups), 0, weights_kernel<T, A, V>, args);
  if (error != cudaSuccess) return error;
  int64_t run = 1;
  while (run * kJoinRuns < units) run *= 2;
  Grid join;
  join.x = static_cast<uint32_t>((call.length + kColumnThreads - 1) / kColumnThreads);
  return start_kernel(queue.next(), join, dim3(kColumnThreads, kJoinRuns), 0, join_weights_kernel<A>,
                      static_cast<const TwoSums<A>*>(workspace), call.length, units, run, static_cast<A*>(weights.weight),
                      static_cast<A*>(weights.bias));
}

// Whether x and g are T in whole vectors at aligned addresses.
template <class T>
bool has_vectors(const RowsCall& call, DType dtype) {
  for (RowOperandName name : {kRowX, kRowG})
    if (call.operands[name].dtype != dtype || !is_contiguous(call, name) || !is_aligned(call, name)) return false;
  return call.length % (kGranule / sizeof(T)) == 0;
}

}  // namespace

cudaError_t run_compiled_rows(const RowsCall& call, const Device& device, cudaStream_t stream) {
  if (!device.native) return kNoKernel;
  switch (call.operands[kRowX].dtype) {
    case DType::Float:
    case DType::Double: return run_float_rows(call, device, stream);
    case DType::Half: return run_half_rows(call, device, stream);
    case DType::BFloat16: return run_bfloat16_rows(call, device, stream);
    default: return kNoKernel;
  }
}

cudaError_t run_rows(const RowsCall& call, const Device& device, cudaStream_t stream) {
  const cudaError_t error = run_compiled_rows(call, device, stream);
  if (error != kNoKernel) return error;
  return with_row_function(call.function, [&](auto f) {
    return call.wide ? start_any<f.value, double>(call, device, stream) : start_any<f.value, float>(call, device, stream);
  });
}

cudaError_t run_rows(const RowStepCall& step, cudaStream_t stream) {
  const unsigned blocks = blocks_of(step.call.rows * step.call.length);
  with_row_function(step.call.function, [&](auto f) {
    if (step.call.wide) step_kernel<f.value, double><<<blocks, kStepThreads, 0, stream>>>(step);
    else step_kernel<f.value, float><<<blocks, kStepThreads, 0, stream>>>(step);
  });
  return cudaGetLastError();
}

cudaError_t run_rows(const RowFinishCall& call, cudaStream_t stream) {
  with_row_function(call.function, [&](auto f) {
    if (call.wide) finish_kernel<f.value, double><<<blocks_of(call.rows), kStepThreads, 0, stream>>>(call);
    else finish_kernel<f.value, float><<<blocks_of(call.rows), kStepThreads, 0, stream>>>(call);
  });
  return cudaGetLastError();
}

int64_t workspace_of(const RowWeightsCall& weights) {
  return units_of(weights.call) * weights.call.length * 2 * (weights.call.wide ? 8 : 4);
}

cudaError_t run_rows(const RowWeightsCall& weights, void* workspace, const Device& device, cudaStream_t stream) {
  const RowsCall& call = weights.call;
  if (call.wide) return start_weights<void, double, 1>(weights, workspace, device, stream);
  if (has_vectors<float>(call, DType::Float)) return start_weights<float, float, 4>(weights, workspace, device, stream);
  if (has_vectors<Half>(call, DType::Half)) return start_weights<Half, float, 4>(weights, workspace, device, stream);
  if (has_vectors<BFloat16>(call, DType::BFloat16))
    return start_weights<BFloat16, float, 4>(weights, workspace, device, stream);
  return start_weights<void, float, 1>(weights, workspace, device, stream);
}

}  // namespace gpureduce::cuda
