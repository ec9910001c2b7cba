// Functions that keep their input's shape: rows that no compiled kernel takes, and the gradients of weights.
#include "rows.h"

#include "../core/cuda/any.cuh"
#include "../core/cuda/early.cuh"
#include "../core/cuda/tree/joins.cuh"
#include "norm_backward.cuh"
#include "rows.cuh"

namespace gpureduce::cuda {

namespace {

// Rows of any dtype, strides and length, read two or three times. For example a row of 10,000 elements: 512 threads, a lane
// each, add the elements of a chunk that are 512 apart, and join their lanes; the three chunks' sums wait in the row's tree.
template <RowFunction f, class A>
__global__ void __launch_bounds__(kAnyRowThreads) any_rows_kernel(const __grid_constant__ RowsCall call, int threads) {
  using Sum = decltype(row_addend<f, A>({}, {}));
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
  RowGradient<A> gradient;
  if constexpr (f == RowFunction::log_prob_backward) gradient = row_gradient<A>(call.loss, index);
  const auto element = [&](int64_t i) {
    RowElement<A> e{number(kRowX, i), 0, 1, 0};
    if constexpr (takes_grad(f)) e.g = number(kRowG, i);
    if constexpr (f == RowFunction::log_prob_backward) e.g = gradient.target == i ? gradient.own : A(0);
    if (is_norm(f) && call.operands[kRowWeight].data) e.w = number(kRowWeight, i);
    if (f == RowFunction::layer_norm && call.operands[kRowBias].data) e.b = number(kRowBias, i);
    return e;
  };

  RowNumbers<A> row;
  if constexpr (reads_numbers(f)) {
    if constexpr (has_mean(f)) row.mean = static_cast<const A*>(call.mean)[index];
    row.r = static_cast<const A*>(call.r)[index];
  }
  if constexpr (f == RowFunction::log_prob_backward) row.share = gradient.share;
  if constexpr (takes_largest(f)) {
    A largest = -INFINITY;
    for (int64_t i = thread; i < length; i += threads) largest = larger(largest, number(kRowX, i));
    row.mean = join_row(largest, A(-INFINITY), threads, largest_slots, [](A p, A q) { return larger(p, q); });
  }
  const auto add_up = [&](auto function) {
    constexpr RowFunction added = function.value;
    using Addend = decltype(row_addend<added, A>({}, {}));
    Addend(&slots)[kMostRowWarps] = *reinterpret_cast<Addend(*)[kMostRowWarps]>(sum_slots);
    Addend waiting[kChunkLevels];
    int64_t chunks = 0;
    for (int64_t chunk = 0; chunk < length; chunk += kChunk, ++chunks) {
      Addend lane = no_addend<Addend>();
      const int64_t end = min(length, chunk + kChunk);
      for (int64_t i = chunk + thread; i < end; i += kLanes) {
        const Addend addend = row_addend<added>(element(i), row);
        lane = i < chunk + kLanes ? addend : lane + addend;
      }
      __syncthreads();  // the chunk before has been read from the slots
      Addend sum = join_row(lane, no_addend<Addend>(), threads, slots, [](Addend p, Addend q) { return p + q; });
      carry(waiting, sum, chunks);
    }
    return joined(waiting, chunks, no_addend<Addend>());
  };
  if constexpr (f == RowFunction::layer_norm) {
    constexpr RowFunction kCenter = RowFunction::center;
    finish_row<kCenter>(row, add_up(std::integral_constant<RowFunction, kCenter>()), length, call.eps);
  }
  if constexpr (has_sum(f)) {
    const Sum sum = add_up(std::integral_constant<RowFunction, f>());
    if (has_result(f) || thread == 0) finish_row<f>(row, sum, length, call.eps);  // no other thread needs a logarithm
    if constexpr (!has_result(f))
      if (there && thread == 0) write_loss<f>(call.loss, index, row, sum, [&](int64_t i) { return number(kRowX, i); });
  }

  if (!there) return;
  if constexpr (writes_numbers(f)) {
    if (thread == 0) {
      if (has_mean(f) && call.mean) static_cast<A*>(call.mean)[index] = row.mean;
      if (call.r) static_cast<A*>(call.r)[index] = row.r;
    }
  }
  if constexpr (has_result(f)) {
    for (int64_t i = thread; i < length; i += threads)
      write_any(const_cast<char*>(row_data[kRowY]) + call.across.offset(kRowY, i), call.operands[kRowY].dtype,
                row_applied<f>(element(i), row));
  }
}

template <RowFunction f, class A>
cudaError_t start_any(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  if (plan.blocks >= kMaxGrid) return cudaErrorInvalidConfiguration;
  return start_kernel(queue, plan.grid(), dim3(plan.block_threads()), 0, any_rows_kernel<f, A>, call, plan.threads);
}

// --- steps ------------------------------------------------------------------------------------------------------------------

// An element per thread.
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
    if (call.loss.targets.classes) e.g = call.loss.targets.of(index) == i ? row.share : A(0);
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
  char* partials;  // per block along the rows: the weight's, then the bias's; those that are wanted
  bool has_weight, has_bias;
  uint64_t policy;
};

// The elements of kDepth rows, all in flight at once: row_of(0), row_of(1), ... Rows below call.rows exist.
template <class T, class A, int V, RowLoads kLoads, class RowOf>
__device__ __forceinline__ void load_rows(const RowsCall& call, const WeightsArgs& a, bool there, RowOf row_of, int64_t column,
                                          A (&x)[kDepth][V], A (&g)[kDepth][V], A (&mean)[kDepth], A (&r)[kDepth]) {
  const auto exists = [&](int i) { return there && row_of(i) < call.rows; };
  const auto from = [&](RowOperandName name, int i) { return call.operands[name].data + call.along.offset(name, row_of(i)); };
  if constexpr (std::is_void_v<T>) {
    for (int i = 0; i < kDepth; ++i) {
      if (!exists(i)) continue;
      g[i][0] = read_any<A>(from(kRowG, i) + call.across.offset(kRowG, column), call.operands[kRowG].dtype);
      x[i][0] = A(0);
      if (a.has_weight) x[i][0] = read_any<A>(from(kRowX, i) + call.across.offset(kRowX, column), call.operands[kRowX].dtype);
    }
  } else {
    const auto load = [&](A(&to)[V], bool wanted, RowOperandName name, int i) {
      const T* const p = reinterpret_cast<const T*>(from(name, i)) + column;
      const int count = wanted ? static_cast<int>(min(call.length - column, int64_t{V})) : 0;
      Vector<T, V> found;
      if constexpr (kLoads == RowLoads::each) found = load_each<T, V>(p, 0, count, a.policy);
      else if constexpr (kLoads == RowLoads::whole) found = load_vector_if<T, V>(count > 0, p, a.policy, {});
      else found = load_around<T, V>(p, 0, count, T{}, all_memory(), a.policy);
#pragma unroll
      for (int j = 0; j < V; ++j) to[j] = static_cast<A>(value(found[j]));
    };
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      load(g[i], exists(i), kRowG, i);
      load(x[i], exists(i) && a.has_weight, kRowX, i);
    }
  }
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    mean[i] = call.mean && exists(i) ? static_cast<const A*>(call.mean)[row_of(i)] : A(0);
    r[i] = call.r && exists(i) ? static_cast<const A*>(call.r)[row_of(i)] : A(0);
  }
}

// The rows' sums of V neighbouring columns per thread. For example 16,384 rows: 4 chunks of 512 lanes. A thread takes lanes 4
// to 7 of a chunk: it adds rows 4, 516, ... of the first one, and joins the four; the block joins its 8 threads of a column, so
// a chunk has 16 partial sums per column. Of 2048 rows a lane has 4, and a thread takes two lanes at once. T: the dtype of all
// operands, side by side; or void for any.
template <class T, class A, int V, RowLoads kLoads>
__global__ void __launch_bounds__(kWeightColumns* kWeightGroups) weights_kernel(const __grid_constant__ WeightsArgs a) {
  using Sums = ColumnSums<A, V>;
  __shared__ __align__(16) char shared[kWeightGroups / 2 * kWeightColumns * sizeof(Sums)];
  Sums* const waiting_sums = reinterpret_cast<Sums*>(shared);
  wait_for_previous_kernel();
  allow_next_kernel();
  const RowsCall& call = a.call;
  const int64_t column = (int64_t{blockIdx.x} * kWeightColumns + threadIdx.x) * V;
  const bool there = column < call.length;
  constexpr int kUnitsOfChunk = kLanes / kUnitLanes;
  const int64_t chunk = blockIdx.y / kUnitsOfChunk * int64_t{kChunk};
  const int64_t lane = blockIdx.y % kUnitsOfChunk * kUnitLanes + threadIdx.y * kGroupLanes;
  Sums none;
#pragma unroll
  for (int j = 0; j < V; ++j) none.of[j] = no_addend<TwoSums<A>>();
  Sums sums;
  const auto take = [&](auto at_once) {
    constexpr int kAtOnce = decltype(at_once)::value, kDeep = kDepth / kAtOnce;  // lanes, and rows of each
    Sums waiting[levels_of(kGroupLanes)];
#pragma unroll 1
    for (int l = 0; l < kGroupLanes; l += kAtOnce) {
      const auto row_of = [&](int i) { return chunk + lane + l + i / kDeep + int64_t{i % kDeep * kLanes}; };
      A x[kDepth][V], g[kDepth][V], mean[kDepth], r[kDepth];
      load_rows<T, A, V, kLoads>(call, a, there, row_of, column, x, g, mean, r);
      Sums lanes[kAtOnce];
#pragma unroll
      for (Sums& each : lanes) each = none;
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        if (!there || row_of(i) >= call.rows) continue;
        Sums& own = lanes[i / kDeep];
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const TwoSums<A> addend{weight_addend(x[i][j], g[i][j], mean[i], r[i]), g[i][j]};
          own.of[j] = i % kDeep == 0 ? addend : own.of[j] + addend;
        }
      }
      sums = join_neighbours(lanes);
      carry(waiting, sums, l / kAtOnce);
    }
  };
  const int64_t left = call.rows - chunk;
  if constexpr (std::is_void_v<T>) take(std::integral_constant<int, 1>());  // one element after the other, whatever there is
  else if (left <= 2 * kLanes) take(std::integral_constant<int, 4>());
  else if (left <= 4 * kLanes) take(std::integral_constant<int, 2>());
  else take(std::integral_constant<int, 1>());
  for (int step = 1; step < kWeightGroups; step *= 2) {
    __syncthreads();
    if (threadIdx.y % (2 * step) == step) waiting_sums[threadIdx.y / (2 * step) * kWeightColumns + threadIdx.x] = sums;
    __syncthreads();
    if (threadIdx.y % (2 * step) == 0) sums = sums + waiting_sums[threadIdx.y / (2 * step) * kWeightColumns + threadIdx.x];
  }
  if (threadIdx.y != 0) return;
  A* const weight = reinterpret_cast<A*>(a.partials) + blockIdx.y * (a.has_weight + a.has_bias) * call.length + column;
  A* const bias = weight + (a.has_weight ? call.length : 0);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (column + j >= call.length) break;
    if (a.has_weight) weight[j] = sums.of[j].first;
    if (a.has_bias) bias[j] = sums.of[j].second;
  }
}

struct JoinArgs {
  const char* partials;  // `count` rows of `pitch` sums
  int64_t length, pitch, count, run;
  uint64_t policy;
  RowOperand results[2];  // of the first `length` columns, and of the next ones; null: not wanted
};

// Joins the rows of partial sums. For example 512 rows of 4096: a block takes 32 columns, 32 threads per column. Each joins a
// run of 16 neighbouring rows, 8 at a time, and the block joins its threads. A run is a power of two long. kLevels: of a run's
// batches.
template <class A, int kLevels>
__global__ void __launch_bounds__(kJoinThreads) join_weights_kernel(const __grid_constant__ JoinArgs a) {
  __shared__ A sums[kJoinThreads];
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, begin = threadIdx.y * a.run;
  const bool second = column >= a.length;
  const RowOperand result = a.results[second];
  const bool there = column < a.pitch && result.data;
  const int64_t left = there ? min(a.run, a.count - begin) : 0;
  const A* const from = reinterpret_cast<const A*>(a.partials) + begin * a.pitch + column;
  A waiting[kLevels];
  int64_t batches = 0;
  for (; batches * kJoinBatch < left; ++batches) {
    Vector<A, 1> loaded[kJoinBatch];
#pragma unroll
    for (int i = 0; i < kJoinBatch; ++i) {
      const int64_t row = batches * kJoinBatch + i;
      loaded[i] = load_vector_if<A, 1>(row < left, from + row * a.pitch, a.policy, padding_vector<A, 1>().bits);
    }
    A batch[kJoinBatch];
#pragma unroll
    for (int i = 0; i < kJoinBatch; ++i) batch[i] = loaded[i][0];
    A sum = join_neighbours(batch);
    carry(waiting, sum, batches);
  }
  A* const own = sums + threadIdx.y * blockDim.x + threadIdx.x;
  *own = joined(waiting, batches, no_addend<A>());
  for (int step = 1; step < blockDim.y; step *= 2) {
    __syncthreads();
    if (threadIdx.y % (2 * step) == 0) *own = *own + own[step * blockDim.x];
  }
  if (threadIdx.y == 0 && there) gpureduce::store(result.data, second ? column - a.length : column, result.dtype, *own);
}

// `first`, `second`: which results the partial sums are of.
template <class A>
cudaError_t start_join(const void* partials, int64_t length, const WeightsJoin& join, const RowOperand& first,
                       const RowOperand& second, Queue queue) {
  const JoinArgs a{static_cast<const char*>(partials), length, join.pitch, join.count, join.run, l2_policy(), {first, second}};
  const bool few = join.run <= kJoinBatch << (kUnrolledLevels - 1);
  const auto kernel = few ? join_weights_kernel<A, kUnrolledLevels> : join_weights_kernel<A, kChunkLevels>;
  return start_kernel(queue, {static_cast<uint32_t>(join.blocks)}, dim3(join.side, join.runs), 0, kernel, a);
}

template <class T, class A, int V, RowLoads kLoads>
cudaError_t start_weights(const RowWeightsCall& weights, const RowWeightsPlan& plan, void* workspace, Queue queue) {
  const bool has_weight = weights.weight.data, has_bias = weights.bias.data;
  const WeightsArgs args{weights.call, static_cast<char*>(workspace), has_weight, has_bias, l2_policy(plan.weights.streams)};
  Grid grid;
  grid.x = static_cast<uint32_t>(plan.weights.column_blocks);
  grid.y = static_cast<uint32_t>(plan.weights.units);
  const cudaError_t error =
      start_kernel(queue, grid, dim3(kWeightColumns, kWeightGroups), 0, weights_kernel<T, A, V, kLoads>, args);
  if (error != cudaSuccess) return error;
  return start_join<A>(workspace, weights.call.length, plan.join, has_weight ? weights.weight : weights.bias, weights.bias,
                       queue.next());
}

// Where x and g are T, side by side.
template <class T>
cudaError_t start_typed_weights(const RowWeightsCall& weights, const RowWeightsPlan& plan, void* workspace, Queue queue) {
  constexpr int V = kWeightVector;
  switch (plan.weights.loads) {
    case RowLoads::whole: return start_weights<T, float, V, RowLoads::whole>(weights, plan, workspace, queue);
    case RowLoads::around: return start_weights<T, float, V, RowLoads::around>(weights, plan, workspace, queue);
    default: return start_weights<T, float, V, RowLoads::each>(weights, plan, workspace, queue);
  }
}

cudaError_t run_weights(const RowWeightsCall& weights, const RowWeightsPlan& plan, void* workspace, Queue queue) {
  if (weights.call.wide) return start_weights<void, double, 1, RowLoads::each>(weights, plan, workspace, queue);
  if (!plan.weights.typed) return start_weights<void, float, 1, RowLoads::each>(weights, plan, workspace, queue);
  switch (weights.call.operands[kRowX].dtype) {
    case DType::Float: return start_typed_weights<float>(weights, plan, workspace, queue);
    case DType::Half: return start_typed_weights<Half>(weights, plan, workspace, queue);
    default: return start_typed_weights<BFloat16>(weights, plan, workspace, queue);
  }
}

cudaError_t run_compiled(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  const bool backward = is_backward(call.function);
  switch (call.operands[kRowX].dtype) {
    case DType::Half: return (backward ? run_half_rows_backward : run_half_rows)(call, plan, queue);
    case DType::BFloat16: return (backward ? run_bfloat16_rows_backward : run_bfloat16_rows)(call, plan, queue);
    default: return (backward ? run_float_rows_backward : run_float_rows)(call, plan, queue);
  }
}

}  // namespace

cudaError_t run_rows(const RowsCall& call, const RowsPlan& plan, const Device& device, cudaStream_t stream) {
  const Queue queue{stream, device.early};
  if (plan.is_compiled()) return run_compiled(call, plan, queue);
  return with_row_function(call.function, [&](auto f) {
    return call.wide ? start_any<f.value, double>(call, plan, queue) : start_any<f.value, float>(call, plan, queue);
  });
}

cudaError_t run_rows(const RowStepCall& step, cudaStream_t stream) {
  const uint32_t blocks = plan_steps(step.call.rows * step.call.length).x;
  with_row_function(step.call.function, [&](auto f) {
    if (step.call.wide) step_kernel<f.value, double><<<blocks, kStepThreads, 0, stream>>>(step);
    else step_kernel<f.value, float><<<blocks, kStepThreads, 0, stream>>>(step);
  });
  return cudaGetLastError();
}

cudaError_t run_rows(const RowFinishCall& call, cudaStream_t stream) {
  const uint32_t blocks = plan_steps(call.rows).x;
  with_row_function(call.function, [&](auto f) {
    if (call.wide) finish_kernel<f.value, double><<<blocks, kStepThreads, 0, stream>>>(call);
    else finish_kernel<f.value, float><<<blocks, kStepThreads, 0, stream>>>(call);
  });
  return cudaGetLastError();
}

cudaError_t run_rows(const RowsCall* input, const RowWeightsCall& weights, const RowWeightsPlan& plan, void* workspace,
                     const Device& device, cudaStream_t stream) {
  const Queue queue{stream, device.early};
  if (plan.is_one_kernel()) {
    if (cudaError_t error = launch_norm_backward(plan.norm, *input, static_cast<float*>(workspace), device, stream))
      return error;
    return start_join<float>(workspace, input->length, plan.join, weights.weight, weights.bias, queue.next());
  }
  if (input)
    if (cudaError_t error = run_rows(*input, plan_rows(*input, device), device, stream)) return error;
  return run_weights(weights, plan, workspace, queue);
}

}  // namespace gpureduce::cuda
