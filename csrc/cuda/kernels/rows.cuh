// Rows that are read once: their elements stay in registers while the row is reduced, and are then applied and written.
//
// For example softmax of rows of 6000 bfloat16. A row has two chunks, and 64 threads per chunk take it, each 8 vectors of 8
// neighbours: thread 3 has the elements 24 to 31, 536 to 543, and so on, 512 apart. Each thread finds its largest element;
// shuffles and shared memory find the row's, m. The thread adds e^(x - m) of elements that are 512 apart, which makes 8 lanes,
// and joins the lanes, neighbours first; the warp joins its threads, the 4 warps of the row their sums. Last, the thread
// multiplies what it kept by 1 / S and writes 8 vectors. Vectors beyond element 5999 are predicated off, and count as padding.
//
// Rows of 50,257 bfloat16 begin anywhere. Row 1 begins 2 bytes beyond a granule of 16: thread 3 loads the granule of elements
// 23 to 30, thread 4 the one of elements 31 to 38, and thread 3 makes the elements 24 to 31 of the two. Stores go the same way
// back. The tensor may end between the first element of a granule and its last: the elements of such a granule are loaded one
// by one.
#pragma once

#include "../early.cuh"
#include "../rows.h"
#include "../tree/joins.cuh"

namespace gpureduce::cuda {

struct RowsArgs {
  InputSpan x, g, weight, bias;
  char *y, *mean, *r;
  RowLoss loss;
  RowDims along;
  int64_t rows, length;
  double eps;
  uint64_t policy, weight_policy;
  int threads;        // per row and block: a power of two
  int cluster;        // blocks per row
  int rounds;         // of a block's threads over its part of a row
  bool float_weight;  // weight and bias are float32
  char* sum;          // per row, of log_sum
};

constexpr int kMostRowWarps = 32;
constexpr int kChunkLevels = 40;  // of the tree above chunks

// Threads per block at most: what its registers allow, where each thread holds 8 vectors per input.
template <RowFunction f, class T>
constexpr int kRowThreads = takes_grad(f) || sizeof(T) == 2 ? 512 : 1024;

// The sum, or another join, of the values of a row's threads in a block, in every thread. `slots` has a place per warp, and no
// other join may use it before the next barrier.
template <class Value, class F>
__device__ __forceinline__ Value join_row(Value v, Value none, int threads, Value (&slots)[kMostRowWarps], F combine) {
  const int in_warp = min(threads, kWarp);
  for (int step = 1; step < in_warp; step *= 2) v = combine(v, shuffle_xor(v, step));
  if (threads <= kWarp) return v;
  const int lane = threadIdx.x % kWarp, warps = threads / kWarp, first = threadIdx.x / threads * warps;
  if (lane == 0) slots[threadIdx.x / kWarp] = v;
  __syncthreads();
  v = lane < warps ? slots[first + lane] : none;
  for (int step = 1; step < warps; step *= 2) v = combine(v, shuffle_xor(v, step));
  return shuffle(v, 0);
}

// The same of the values of a cluster's blocks. Each block must have arrived at the cluster's barrier before, and has arrived
// again after.
template <class Value, class F>
__device__ __forceinline__ Value join_blocks(Value v, Value none, int cluster, Value (&from_blocks)[kMaxCluster], F combine) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    __cluster_barrier_wait();  // all blocks have begun, or have read what the last join sent
    if (threadIdx.x < cluster)
      *static_cast<Value*>(__cluster_map_shared_rank(&from_blocks[blockIdx.x % cluster], threadIdx.x)) = v;
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
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

// Elements from the last address at which a vector may lie to `p`.
template <class T, int V>
__device__ __forceinline__ int past_vector(const T* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) / sizeof(T) % V);
}

template <class T, int V>
__device__ __forceinline__ void set_beyond(Vector<T, V>& x, int count, T missing) {
  if (count >= V) return;
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (j >= count) x.set(j, missing);
}

// V neighbours, element by element. The first `count` exist; the others are `missing`.
template <class T, int V>
__device__ __forceinline__ Vector<T, V> load_each(const T* p, int count, T missing, uint64_t policy) {
  Vector<T, 1> none;
  none.set(0, missing);
  Vector<T, V> x;
#pragma unroll
  for (int j = 0; j < V; ++j) x.set(j, load_vector_if<T, 1>(j < count, p + j, policy, none.bits)[0]);
  return x;
}

// How many of a row's last elements lie in a vector that reaches over the end of the memory that their operand takes up.
template <class T, int V>
__device__ __forceinline__ int cut_off(const T* row_end, const InputSpan& input) {
  const T* const end = reinterpret_cast<const T*>(input.end);
  return static_cast<int>(max(row_end - (end - past_vector<T, V>(end)), int64_t{0}));
}

// For elements whose aligned vectors are known to be inside: the compiler drops the checks.
__device__ __forceinline__ InputSpan all_memory() { return {nullptr, reinterpret_cast<const char*>(UINTPTR_MAX)}; }

// D vectors of V neighbours, 512 elements apart. start() begins their loads and finish() waits for them, so that the loads of
// several of these are in flight together. kVectors: all elements of a vector exist, or none, at an aligned address. Otherwise
// it is made of two aligned vectors, low and high. These may reach over the ends of the row. Where they would reach over the
// ends of the memory that the operand takes up, elements are loaded one by one.
//
// Where a thread has several vectors, the warp's threads are neighbours: each loads the low ones, and has the high ones from
// the next thread. Thread d loads the one behind the warp's vectors d.
template <bool kVectors, class T, int V, int D>
class DeepVectors {
 public:
  __device__ __forceinline__ Vector<T, V>& operator[](int d) { return x_[d]; }

  // From `p` on, `left` elements exist; the others are `missing`. `row_end`: the end of their row.
  __device__ __forceinline__ void start(const T* p, int left, const T* row_end, T missing, const InputSpan& input,
                                        uint64_t policy) {
    left_ = left;
    missing_ = missing;
    if constexpr (kVectors) {
#pragma unroll
      for (int d = 0; d < D; ++d) {
#pragma unroll
        for (int j = 0; j < V; ++j) x_[d].set(j, missing);
        x_[d] = load_vector_if<T, V>(d * kLanes < left, p + d * kLanes, policy, x_[d].bits);
      }
    } else {
      shift_ = past_vector<T, V>(p);
      low_ = p - shift_;
      input_ = input;
      policy_ = policy;
      if constexpr (D == 1) start_one(p);
      else start_all(cut_off<T, V>(row_end, input));
    }
  }

  __device__ __forceinline__ void finish() {
    if constexpr (!kVectors) {
      if constexpr (D > 1) mend();
#pragma unroll
      for (int d = 0; d < D; ++d) {
        auto high = more_;
        if constexpr (D > 1) {
          const int lane = threadIdx.x % kWarp;
          const Vector<T, V> next{shuffle(x_[d].bits, (lane + 1) % kWarp)}, end{shuffle(more_.bits, d)};
          high = choose(lane == kWarp - 1, end, next);
        }
        x_[d] = funnel(x_[d], high, shift_);
        set_beyond(x_[d], left_ - d * kLanes, missing_);
      }
    }
  }

 private:
  using Bits = typename Vector<T, V>::Bits;

  __device__ __forceinline__ void start_one(const T* p) {
    const bool inside = !begins_outside() && reinterpret_cast<const char*>(low_ + 2 * V) <= input_.end;
    x_[0] = load_vector_if<T, V>(inside && left_ > 0, low_, policy_, Bits{});
    more_ = load_vector_if<T, V, V>(inside && shift_ > 0 && left_ > V - shift_, low_, policy_, Bits{});
    if (!inside && left_ > 0) {
      x_[0] = load_each<T, V>(p, left_, missing_, policy_);
      shift_ = 0;
    }
  }

  // Places are counted in elements from low_. The neighbours need each thread's low vectors as they are in memory, so only
  // those that reach over the input's ends are loaded again.
  __device__ __forceinline__ void start_all(int cut) {
    whole_ = left_ + shift_ - cut;
#pragma unroll
    for (int d = 0; d < D; ++d) {
      const bool wanted = d * kLanes < whole_ && !(d == 0 && begins_outside());
      x_[d] = load_vector_if<T, V>(wanted, low_ + d * kLanes, policy_, Bits{});
    }
    more_ = load_vector_if<T, V>(has_more() && more_at() < whole_, low_ + more_at(), policy_, Bits{});
  }
  __device__ __forceinline__ void mend() {
    if (begins_outside()) load_inside(0);
    if (whole_ < left_ + shift_ && reads(whole_)) load_inside(whole_);
  }
  __device__ __forceinline__ void load_inside(int at) {
    const auto inside = Typed<T, true>{low_, policy_, ~0u}.template load_inside<V>(input_, at);
#pragma unroll
    for (int d = 0; d < D; ++d) x_[d] = choose(at == d * kLanes, inside, x_[d]);
    more_ = choose(at == more_at(), inside, more_);
  }
  static __device__ __forceinline__ int more_at() {
    const int lane = threadIdx.x % kWarp;
    return (kWarp - lane) * V + lane * kLanes;
  }
  __device__ __forceinline__ bool has_more() const { return shift_ > 0 && threadIdx.x % kWarp < D; }
  __device__ __forceinline__ bool reads(int at) const {
    return (at % kLanes == 0 && static_cast<unsigned>(at) < D * kLanes) || (has_more() && at == more_at());
  }
  __device__ __forceinline__ bool begins_outside() const { return reinterpret_cast<const char*>(low_) < input_.begin; }

  Vector<T, V> x_[D], more_;  // the low ones, then the results; the high one, or the thread's part of the warp's high ones
  const T* low_;              // the aligned vector that has the first element
  int left_, shift_, whole_;  // elements from p on; from low_ to p; from low_ to the row's end or the last whole vector's
  T missing_;
  InputSpan input_;
  uint64_t policy_;
};

// Stores the first `count` of V neighbours, at any address, in aligned vectors: each has the end of one thread's elements and
// the beginning of the next one's. Runs of `threads` of a warp are neighbours; all threads of the warp must call it.
template <class R, int V>
__device__ __forceinline__ void store_shifted(R* to, int count, const R (&values)[V], int threads) {
  constexpr int N = granule_values<R>(V), kCount = V / N;
  const int past = past_vector<R, N>(to), lane = threadIdx.x % threads;
  Vector<R, N> own[kCount];
#pragma unroll
  for (int j = 0; j < V; ++j) own[j / N].set(j % N, values[j]);
  Vector<R, N> before{shuffle(own[kCount - 1].bits, (threadIdx.x + kWarp - 1) % kWarp)};
  // Whether this thread, and the next one, stores vectors. The first vector has the last elements of the thread before.
  const bool whole = (lane > 0 || past == 0) && count >= V - past;
  const bool next_whole = lane + 1 < threads && count - V >= V - past;
  if (whole) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto vector = past == 0 ? own[i] : funnel(before, own[i], N - past);
      reinterpret_cast<Vector<R, N>*>(to - past + i * N)->bits = vector.bits;
      before = own[i];
    }
  }
  if (!whole || (past > 0 && !next_whole)) {
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (j < count && !(j < V - past ? whole : next_whole)) to[j] = values[j];
  }
}

// V neighbouring weights, which stay in the caches, as numbers. `missing` stands for those that do not exist.
template <bool kVectors, class T, class A, int V>
__device__ __forceinline__ void load_weights(A (&to)[V], const InputSpan& from, int64_t first, int count, bool is_float,
                                             A missing, uint64_t policy) {
  const auto load = [&](auto zero) {
    using W = decltype(zero);
    constexpr int N = granule_values<W>(V);
    const W *const begin = reinterpret_cast<const W*>(from.begin), *const end = reinterpret_cast<const W*>(from.end);
    DeepVectors<kVectors, W, N, 1> x[V / N];
#pragma unroll
    for (int i = 0; i < V / N; ++i)
      x[i].start(begin + first + i * N, count - i * N, end, element_of<W>(static_cast<float>(missing)), from, policy);
#pragma unroll
    for (int i = 0; i < V / N; ++i) {
      x[i].finish();
#pragma unroll
      for (int j = 0; j < N; ++j) to[i * N + j] = static_cast<A>(value(x[i][0][j]));
    }
  };
  if (!from.begin) {
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = missing;
  } else if (!std::is_same_v<T, float> && is_float) {
    load(float{});
  } else {
    load(T{});
  }
}

// Numbers, each rounded to an element.
template <class R, class A, int V>
__device__ __forceinline__ void round_all(R (&to)[V], const A (&from)[V]) {
  if constexpr (std::is_same_v<R, BFloat16> && std::is_same_v<A, float>) {  // two at a time
#pragma unroll
    for (int j = 0; j < V; j += 2) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(from[j], from[j + 1]);
      to[j] = {__bfloat16_as_ushort(two.x)};
      to[j + 1] = {__bfloat16_as_ushort(two.y)};
    }
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = round_to<R>(from[j]);
  }
}

// What stands for an element that does not exist, so that its addend changes no bit of the sum: e^-inf and 0 * 0 are +0, and
// sums of exponentials and squares are never -0; -0.0 * 1 is the identity.
template <RowFunction f, class T>
__device__ __forceinline__ T missing_x() {
  return element_of<T>(takes_largest(f)             ? -INFINITY
                       : f == RowFunction::rms_norm ? 0.0f
                       : f == RowFunction::quotient ? -0.0f
                                                    : 1.0f);
}

// D: vectors of a thread in flight, of leaves with so many elements. kVectors: rows are whole vectors at aligned addresses.
// kOnce: registers hold the row, otherwise it is read again for each step, in a.rounds rounds.
template <RowFunction f, class T, class R, int D, bool kVectors, bool kOnce>
__global__ void __launch_bounds__(kRowThreads<f, T>) rows_kernel(const __grid_constant__ RowsArgs a) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Sum = decltype(row_addend<f, A>({}, {}, A(0)));
  constexpr int V = kGranule / sizeof(T), kUnits = kLanes / V;
  __shared__ A largest_slots[kMostRowWarps], largest_of_blocks[kMaxCluster];
  __shared__ __align__(16) char sum_slots[(kMostRowWarps + kMaxCluster) * sizeof(Sum)];
  Sum(&slots)[kMostRowWarps] = *reinterpret_cast<Sum(*)[kMostRowWarps]>(sum_slots);
  Sum(&sums_of_blocks)[kMaxCluster] = *reinterpret_cast<Sum(*)[kMaxCluster]>(sum_slots + sizeof(slots));
  const auto larger_of = [](A p, A q) { return larger(p, q); };
  const auto sum_of = [](Sum p, Sum q) { return p + q; };
#if __CUDA_ARCH__ >= 900
  if (has_sum(f) && a.cluster > 1) __cluster_barrier_arrive_relaxed();
#endif
  wait_for_previous_kernel();
  allow_next_kernel();

  const int thread = threadIdx.x % a.threads, part = blockIdx.x % a.cluster;
  const int64_t row_index =
      int64_t{blockIdx.x / static_cast<uint32_t>(a.cluster)} * (blockDim.x / a.threads) + threadIdx.x / a.threads;
  const bool there = row_index < a.rows, is_first = thread == 0 && part == 0;
  const int64_t index = there ? row_index : 0, length = there ? a.length : 0;
  const T* const row_x = reinterpret_cast<const T*>(a.x.begin + a.along.offset(kRowX, index));
  const T* const row_g = takes_grad(f) ? reinterpret_cast<const T*>(a.g.begin + a.along.offset(kRowG, index)) : nullptr;
  R* const row_y = has_result(f) ? reinterpret_cast<R*>(a.y + a.along.offset(kRowY, index)) : nullptr;
  T missing = missing_x<f, T>();
  A first_element{};
  if constexpr (f == RowFunction::layer_norm) {
    missing = row_x[0];
    first_element = static_cast<A>(value(missing));
  }

  // The thread's elements in a round: from `first` on. `left` of them exist, or none if it is negative.
  int64_t first = 0;
  int left = 0;
  DeepVectors<kVectors, T, V, D> x, g;
  const auto place = [&](int round) {
    const int64_t unit = (int64_t{part} * a.rounds + round) * a.threads + thread;
    first = unit / kUnits * kChunk + unit % kUnits * V;
    left = static_cast<int>(min(max(length - first, int64_t{-kChunk}), int64_t{kChunk}));
  };
  const auto load = [&](int round) {
    place(round);
    x.start(row_x + first, left, row_x + length, missing, a.x, a.policy);
    if constexpr (takes_grad(f)) {
      g.start(row_g + first, left, row_g + length, element_of<T>(-0.0f), a.g, a.policy);
      x.finish();
      g.finish();
    } else {
      x.finish();
    }
  };
  const int rounds = kOnce ? 1 : a.rounds;
  if constexpr (kOnce) load(0);

  RowNumbers<A> row;
  if constexpr (reads_numbers(f)) {
    if constexpr (has_mean(f)) row.mean = reinterpret_cast<const A*>(a.mean)[index];
    row.r = reinterpret_cast<const A*>(a.r)[index];
  }
  RowGradient<A> gradient;
  if constexpr (f == RowFunction::log_prob_backward) {
    gradient = row_gradient<A>(a.loss, index);
    row.share = gradient.share;
  }
  if constexpr (takes_largest(f)) {
    A largest = -INFINITY;
    for (int round = 0; round < rounds; ++round) {
      if constexpr (!kOnce) load(round);
#pragma unroll
      for (int d = 0; d < D; ++d) {
#pragma unroll
        for (int j = 0; j < V; ++j) largest = larger(largest, static_cast<A>(value(x[d][j])));
      }
    }
    largest = join_row(largest, A(-INFINITY), a.threads, largest_slots, larger_of);
    row.mean = join_blocks(largest, A(-INFINITY), a.cluster, largest_of_blocks, larger_of);
  }

  // Elements of vector d, with weights where the function has them.
  const auto elements = [&](int d, RowElement<A>(&e)[V]) {
    A w[V], b[V];
    if constexpr (is_norm(f)) {
      const auto load = [&](A(&to)[V], const InputSpan& from, A missing) {
        load_weights<kVectors, T>(to, from, first + d * kLanes, left - d * kLanes, a.float_weight, missing, a.weight_policy);
      };
      load(w, a.weight, A(1));
      if constexpr (f == RowFunction::layer_norm) load(b, a.bias, A(0));
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      e[j].x = static_cast<A>(value(x[d][j]));
      if constexpr (takes_grad(f)) e[j].g = static_cast<A>(value(g[d][j]));
      if constexpr (f == RowFunction::log_prob_backward)
        e[j].g = gradient.target == first + d * kLanes + j ? gradient.own : A(0);
      if constexpr (is_norm(f)) e[j].w = w[j];
      if constexpr (f == RowFunction::layer_norm) e[j].b = b[j];
      if constexpr (f == RowFunction::layer_norm_backward)  // (mean - mean) * r is +0, and -0.0 * +0 the identity
        e[j].x = d * kLanes + j < left ? e[j].x : row.mean;
    }
  };

  constexpr bool kKeeps = kOnce && f == RowFunction::softmax;  // the exponentials
  A kept[kKeeps ? D : 1][V];
  if constexpr (has_sum(f)) {
    Sum waiting[kOnce ? 1 : kChunkLevels], sum{};
    for (int round = 0; round < rounds; ++round) {
      if constexpr (!kOnce) load(round);
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
      if (!kOnce) __syncthreads();  // all have read the slots of the round before
      sum = join_row(join_neighbours(lanes), no_addend<Sum>(), a.threads, slots, sum_of);
      if constexpr (!kOnce) carry(waiting, sum, round);
    }
    if constexpr (!kOnce) sum = joined(waiting, rounds, no_addend<Sum>());
    sum = join_blocks(sum, no_addend<Sum>(), a.cluster, sums_of_blocks, sum_of);
#if __CUDA_ARCH__ >= 900
    if (a.cluster > 1) __cluster_barrier_wait();
#endif
    if constexpr (has_result(f)) {
      finish_row<f>(row, sum, first_element, a.length, a.eps);
    } else if (is_first) {  // no other thread needs the logarithm
      if (a.r) finish_row<f>(row, sum, first_element, a.length, a.eps);
      if (f == RowFunction::log_sum && there && a.sum) *reinterpret_cast<Sum*>(a.sum + index * sizeof(Sum)) = sum;
      if (there) write_loss<f>(a.loss, index, row, sum, [&](int64_t i) { return static_cast<A>(value(row_x[i])); });
    }
  }

  if (!there) return;
  if constexpr (writes_numbers(f)) {
    if (is_first) {
      if (has_mean(f) && a.mean) reinterpret_cast<A*>(a.mean)[index] = row.mean;
      if (a.r) reinterpret_cast<A*>(a.r)[index] = row.r;
    }
  }
  if constexpr (has_result(f)) {
    for (int round = 0; round < rounds; ++round) {
      if constexpr (!kOnce) load(round);
#pragma unroll
      for (int d = 0; d < D; ++d) {
        const int here = left - d * kLanes;
        if (kVectors && here <= 0) continue;
        RowElement<A> e[V];
        if constexpr (!kKeeps) elements(d, e);
        A y[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
          if constexpr (kKeeps) y[j] = kept[d][j] * row.r;
          else y[j] = row_applied<f>(e[j], row);
        }
        R rounded[V];
        round_all(rounded, y);
        R* const to = row_y + first + d * kLanes;
        if constexpr (kVectors) {
          store_granules([&](int j) { return to + j; }, rounded);
        } else {
          store_shifted(to, here, rounded, min(a.threads, kWarp));
        }
      }
    }
  }
}

// Whether an operand's rows have their elements side by side.
inline bool is_contiguous(const RowsCall& call, RowOperandName name) {
  if (!call.operands[name].data || call.across.rank == 0) return true;
  return call.across.rank == 1 && call.across.dims[0].strides[name] == info(call.operands[name].dtype).size;
}
// The memory that an operand takes up.
inline InputSpan span_of(const RowsCall& call, RowOperandName name) {
  const RowOperand& operand = call.operands[name];
  if (!operand.data) return {};
  const char* end = operand.data + info(operand.dtype).size;
  for (const RowDims* dims : {&call.along, &call.across})
    for (int d = 0; d < dims->rank; ++d) end += (dims->dims[d].size - 1) * dims->dims[d].strides[name];
  return {operand.data, end};
}
inline bool is_aligned(const RowsCall& call, RowOperandName name) {
  if (!call.operands[name].data) return true;
  uint64_t all = reinterpret_cast<uintptr_t>(call.operands[name].data);
  for (int d = 0; d < call.along.rank; ++d) all |= static_cast<uint64_t>(call.along.dims[d].strides[name]);
  return all % kGranule == 0;
}

// The kernel for rows of a length, and how its threads share a row.
template <RowFunction f, class T, class R, bool kVectors>
auto rows_kernel_of(int64_t n, bool once) {
  if (!once) return rows_kernel<f, T, R, 8, kVectors, false>;
  if (n <= kLanes) return rows_kernel<f, T, R, 1, kVectors, true>;
  if (n <= 2 * kLanes) return rows_kernel<f, T, R, 2, kVectors, true>;
  if (n <= 4 * kLanes) return rows_kernel<f, T, R, 4, kVectors, true>;
  return rows_kernel<f, T, R, 8, kVectors, true>;
}

// Threads of a block that takes rows of one chunk and less, and the most of one that takes a part of a row and shares its
// multiprocessor with blocks of other rows: while one of them computes, another one loads.
constexpr int kFewRowThreads = 128;

template <RowFunction f, class T, class R>
cudaError_t start_rows(const RowsCall& call, const Device& device, cudaStream_t stream) {
  constexpr int V = kGranule / sizeof(T), kUnits = kLanes / V, kMost = kRowThreads<f, T>;
  const int64_t n = call.length, chunks = (n + kChunk - 1) / kChunk;
  RowsArgs a{};
  a.x = span_of(call, kRowX);
  a.g = span_of(call, kRowG);
  a.weight = span_of(call, kRowWeight);
  a.bias = span_of(call, kRowBias);
  a.y = call.operands[kRowY].data;
  a.mean = static_cast<char*>(call.mean);
  a.r = static_cast<char*>(call.r);
  a.loss = call.loss;
  a.along = call.along;
  a.rows = call.rows;
  a.length = n;
  a.eps = call.eps;
  const DType weight = call.operands[kRowWeight].data ? call.operands[kRowWeight].dtype : call.operands[kRowBias].dtype;
  a.float_weight = weight == DType::Float;
  bool vectors = n % V == 0;
  for (RowOperandName name : {kRowX, kRowG, kRowWeight, kRowBias, kRowY}) vectors = vectors && is_aligned(call, name);

  const auto power_of_two = [](int64_t least) {
    int64_t n = 1;
    while (n < least) n *= 2;
    return n;
  };
  // Blocks take runs of chunks, whose number is a power of two, and the last one what is left.
  const int64_t all = n <= kLanes ? power_of_two((n + V - 1) / V) : chunks * kUnits;
  const int most_blocks = device.clusters ? kMaxCluster : 1;
  const bool in_block = all <= kMost && call.rows >= 2 * device.multiprocessors;  // a block waits for itself alone
  int64_t run = std::min<int64_t>(power_of_two(all), in_block ? kMost : std::max(kUnits, kFewRowThreads));
  while (run * most_blocks < all) run *= 2;
  a.threads = static_cast<int>(std::min<int64_t>(run, kMost));
  a.rounds = static_cast<int>(run / a.threads);
  a.cluster = static_cast<int>((all + run - 1) / run);
  const bool once = a.rounds == 1;
  if (!once && call.sum) return kNoKernel;  // sums of exponentials cut long rows over the whole GPU
  a.sum = static_cast<char*>(call.sum);
  const int64_t bytes = call.rows * n * static_cast<int64_t>(sizeof(T)) * (takes_grad(f) ? 2 : 1);
  a.policy = l2_policy(once && bytes > device.l2_bytes / 2);
  a.weight_policy = l2_policy();
  const int per_block = std::max(1, kFewRowThreads / a.threads);
  const int64_t blocks = (call.rows + per_block - 1) / per_block * a.cluster;
  if (blocks >= kMaxGrid) return kNoKernel;
  Grid grid;
  grid.x = static_cast<uint32_t>(blocks);
  grid.cluster = static_cast<uint32_t>(a.cluster);
  const dim3 threads(per_block * a.threads);
  const auto kernel = vectors ? rows_kernel_of<f, T, R, true>(n, once) : rows_kernel_of<f, T, R, false>(n, once);
  return start_kernel({stream, device.early}, grid, threads, 0, kernel, a);
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
  return is(kRowX, t) && is(kRowG, t) && weights && is(kRowY, r);
}

}  // namespace gpureduce::cuda
