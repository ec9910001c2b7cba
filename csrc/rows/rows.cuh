// Rows that are read once: their elements stay in registers while the row is reduced, and are then applied and written.
//
// For example softmax of rows of 6000 bfloat16. A row has two chunks, and 64 threads per chunk take it, each 8 vectors of 8
// neighbours: thread 3 has the elements 24 to 31, 536 to 543, and so on, 512 apart. Each thread finds its largest element;
// shuffles and shared memory find the row's, m. The thread adds e^(x - m) of elements that are 512 apart, which makes 8 lanes,
// and joins the lanes, neighbours first; the warp joins its threads, the 4 warps of the row their sums. Last, the thread
// multiplies what it kept by 1 / S and writes 8 vectors. Vectors beyond element 5999 are predicated off, and count as padding.
//
// Rows of 50,257 bfloat16 begin anywhere. Row 1 begins 2 bytes beyond a granule of 16, so its granules have the elements 7 to
// 14, 15 to 22, and so on. The threads keep whole granules and add their elements where they lie: thread 1 has the lanes 7
// to 14. Thread 0 has the lanes 511 and 0 to 6: element 511 lies in the first granule of its second vector, and element 4095 in
// the granule behind the chunk's vectors, which it loads as well. Only the 512 finished lanes move, by one place, before they
// are joined. Results are written in granules, too, but for the ends of the row.
#pragma once

#include "../core/cuda/early.cuh"
#include "../core/cuda/tree/joins.cuh"
#include "rows.h"

namespace gpureduce::cuda {

struct RowsArgs {
  InputSpan x, g, weight, bias;
  char *y, *mean, *r;
  RowLoss loss;
  RowDims along;
  int64_t rows, length;
  double eps;
  uint64_t policy, weight_policy;
  int threads, log_threads;  // per row and block: a power of two
  int cluster;               // blocks per row
  int rounds;                // of a block's threads over its part of a row
  int in_flight;             // rows that a thread takes part in at once
  bool x_moved, g_moved;     // their vectors are not at the places of the results'
  bool float_weight;         // weight and bias are float32
  char* sum;                 // per row, of log_sum
};

constexpr int kMostRowWarps = 32;
constexpr int kChunkLevels = 40;  // of the tree above chunks

template <RowFunction f, class T>
constexpr int kRowThreads = most_row_threads(f, sizeof(T));

// The sum, or another join, of the values of a row's threads in a block, in every thread. Each warp has H groups of values, one
// of each thread. `slots` has a place per warp, and no other join may use it before the next barrier.
template <class Value, int H, class F>
__device__ __forceinline__ Value join_row(Value (&v)[H], Value none, int threads, Value (&slots)[kMostRowWarps], F combine) {
  const int in_warp = min(threads, kWarp);
  for (int step = 1; step < in_warp; step *= 2) {
#pragma unroll
    for (Value& each : v) each = combine(each, shuffle_xor(each, step));
  }
#pragma unroll
  for (int step = 1; step < H; step *= 2) {
#pragma unroll
    for (int h = 0; h < H; h += 2 * step) v[h] = combine(v[h], v[h + step]);
  }
  if (threads <= kWarp) return v[0];
  const int lane = threadIdx.x % kWarp, warps = threads / kWarp, first = threadIdx.x / threads * warps;
  if (lane == 0) slots[threadIdx.x / kWarp] = v[0];
  __syncthreads();
  Value joined = lane < warps ? slots[first + lane] : none;
  for (int step = 1; step < warps; step *= 2) joined = combine(joined, shuffle_xor(joined, step));
  return shuffle(joined, 0);
}
template <class Value, class F>
__device__ __forceinline__ Value join_row(Value v, Value none, int threads, Value (&slots)[kMostRowWarps], F combine) {
  Value values[1] = {v};
  return join_row(values, none, threads, slots, combine);
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

// Puts `missing` in place of the elements before `begin` and from `end` on.
template <class T, int V>
__device__ __forceinline__ void set_outside(Vector<T, V>& x, int begin, int end, T missing) {
  if (begin <= 0 && end >= V) return;
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (j < begin || j >= end) x.set(j, missing);
}

// For elements whose aligned vectors are known to be inside: the compiler drops the checks.
__device__ __forceinline__ InputSpan all_memory() { return {nullptr, reinterpret_cast<const char*>(UINTPTR_MAX)}; }

// Whether an aligned vector ends within an operand's memory. One that begins before it is no harm (core/cuda/load/shifted.cuh).
template <class T, int V>
__device__ __forceinline__ bool ends_inside(const T* vector, const InputSpan& memory) {
  return reinterpret_cast<const char*>(vector + V) <= memory.end;
}

// V neighbours, element by element.
template <class T, int V>
__device__ __forceinline__ Vector<T, V> load_each(const T* p, int begin, int end, uint64_t policy) {
  Vector<T, V> x;
#pragma unroll
  for (int j = 0; j < V; ++j) x.set(j, load_vector_if<T, 1>(j >= begin && j < end, p + j, policy, {})[0]);
  return x;
}

// V neighbours at any address, in two aligned vectors. Those from `begin` to before `end` exist; the others are `missing`.
template <class T, int V>
__device__ __forceinline__ Vector<T, V> load_around(const T* p, int begin, int end, T missing, const InputSpan& memory,
                                                    uint64_t policy) {
  const int shift = past_vector<T, V>(p);
  const T *const low = p - shift, *const high = low + V;
  const bool has_low = begin < V - shift && end > 0, has_high = begin < V && end > V - shift && shift > 0;
  const bool inside = ends_inside<T, V>(has_high ? high : low, memory);
  Vector<T, V> x = load_vector_if<T, V>(has_low && inside, low, policy, {});
  const Vector<T, V> more = load_vector_if<T, V>(has_high && inside, high, policy, {});
  x = funnel(x, more, shift);
  if (!inside && begin < end) x = load_each<T, V>(p, begin, end, policy);
  set_outside(x, begin, end, missing);
  return x;
}

// How many of a row's last elements lie in a vector that ends beyond the memory of their operand.
template <class T, int V>
__device__ __forceinline__ int cut_off(const T* row_end, const InputSpan& memory) {
  const T* const end = reinterpret_cast<const T*>(memory.end);
  return static_cast<int>(max(row_end - (end - past_vector<T, V>(end)), int64_t{0}));
}

// The part of a row that a thread holds: H times D vectors of V neighbours. Their places are counted from the first one's
// beginning, which is the row's element `first`; or would be, where the row begins within a vector. The places from `begin` to
// before `end` exist. kTail: of the chunk's first thread the places from kChunk to before `tail` as well.
template <int V, int H, int D, bool kVectors, bool kTail>
struct RowPlace {
  static_assert(!kTail || (H == 1 && D == kDepth));
  int64_t first;
  int begin, end, tail;

  static __device__ __forceinline__ int at(int h, int d) { return h * kWarp * V + d * kLanes; }
  // Of a vector's elements, those that exist.
  __device__ __forceinline__ int begin_of(int h, int d) const { return !kVectors && h + d == 0 ? begin : 0; }
  __device__ __forceinline__ int end_of(int h, int d) const { return (d == D ? tail : end) - at(h, d); }

  // Calls f(h, d) for each vector.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int h = 0; h < H; ++h) {
#pragma unroll
      for (int d = 0; d < D; ++d) f(h, d);
    }
    if constexpr (kTail)
      if (tail > kChunk) f(0, D);
  }
};

// An operand's elements at a thread's places.
template <class T, int V, int H, int D, bool kVectors, bool kTail>
struct RowVectors {
  using Place = RowPlace<V, H, D, kVectors, kTail>;
  Vector<T, V> of[H][D + kTail];
  int whole;  // places before the first vector that ends beyond the operand's memory

  // Begins the loads. `row`: the row's first element. `moved`: no vector of the operand is at a place, so two make one.
  __device__ __forceinline__ void start(const T* row, int64_t length, const Place& place, bool moved, T missing,
                                        const InputSpan& memory, uint64_t policy) {
    const T* const p = row + place.first;
    if constexpr (kVectors) {
      Vector<T, V> none;
#pragma unroll
      for (int j = 0; j < V; ++j) none.set(j, missing);
      place.each([&](int h, int d) {
        of[h][d] = load_vector_if<T, V>(place.end_of(h, d) > 0, p + place.at(h, d), policy, none.bits);
      });
    } else if (moved) {
      place.each([&](int h, int d) {
        of[h][d] = load_around<T, V>(p + place.at(h, d), place.begin_of(h, d), place.end_of(h, d), missing, memory, policy);
      });
    } else {
      const int cut = cut_off<T, V>(row + length, memory);
      whole = static_cast<int>(min(length - cut - place.first, int64_t{2 * kChunk}));
      place.each([&](int h, int d) {
        const bool wanted = place.end_of(h, d) > 0 && place.at(h, d) < whole;
        of[h][d] = load_vector_if<T, V>(wanted, p + place.at(h, d), policy, {});
      });
    }
  }

  // Waits for them.
  __device__ __forceinline__ void finish(const T* row, const Place& place, bool moved, T missing, uint64_t policy) {
    if constexpr (!kVectors) {
      place.each([&](int h, int d) {
        const int begin = place.begin_of(h, d), end = place.end_of(h, d);
        if (!moved && end > 0 && place.at(h, d) >= whole)
          of[h][d] = load_each<T, V>(row + place.first + place.at(h, d), begin, end, policy);
        set_outside(of[h][d], begin, end, missing);
      });
    }
  }
};

// The sums of V neighbouring lanes.
template <class Sum, int V>
struct RowLaneSums {
  Sum sum[V];
};

// Moves the lane sums of a row whose first element is `shift` places beyond a vector's beginning to the threads that join them.
// `threads` have the row. kWarps: several warps have a chunk, kChunkThreads of them.
template <bool kWarps, int kChunkThreads, class Sum, int V, int H>
__device__ __forceinline__ void move_lanes(RowLaneSums<Sum, V> (&lanes)[H], int shift, int threads) {
  if constexpr (kWarps) {
    constexpr int kOfChunk = kChunkThreads / kWarp;
    __shared__ __align__(16) char firsts[kMostRowWarps * sizeof(lanes[0])];  // of each warp's first thread
    auto* const first = reinterpret_cast<RowLaneSums<Sum, V>*>(firsts);
    const int warp = threadIdx.x / kWarp;
    if (threadIdx.x % kWarp == 0) first[warp] = lanes[0];
    __syncthreads();
    RowLaneSums<Sum, V> next = first[warp / kOfChunk * kOfChunk + (warp + 1) % kOfChunk];
    move_down<H, V / 2>(lanes, shift, kWarp, &next);
  } else {
    move_down<H, V / 2>(lanes, shift, min(threads, kWarp));
  }
}

// V neighbouring weights, which stay in the caches, as numbers. `missing` stands for those that do not exist.
template <bool kVectors, class T, class A, int V>
__device__ __forceinline__ void load_weights(A (&to)[V], const InputSpan& from, int64_t first, int begin, int end,
                                             bool is_float, A missing, uint64_t policy) {
  const auto load = [&](auto zero) {
    using W = decltype(zero);
    constexpr int N = granule_values<W>(V);
    const W* const p = reinterpret_cast<const W*>(from.begin) + first;
    const W none = element_of<W>(static_cast<float>(missing));
    Vector<W, N> x[V / N], all;
#pragma unroll
    for (int j = 0; j < N; ++j) all.set(j, none);
#pragma unroll
    for (int i = 0; i < V / N; ++i) {
      if constexpr (kVectors) x[i] = load_vector_if<W, N>(i * N < end, p + i * N, policy, all.bits);
      else x[i] = load_around<W, N>(p + i * N, begin - i * N, end - i * N, none, from, policy);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = static_cast<A>(value(x[j / N][j % N]));
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
// sums of exponentials and squares are never -0; -0.0 and -0.0 * 1 are the identity.
template <RowFunction f, class T>
__device__ __forceinline__ T missing_x() {
  return element_of<T>(takes_largest(f)                                             ? -INFINITY
                       : f == RowFunction::rms_norm                                 ? 0.0f
                       : f == RowFunction::quotient || f == RowFunction::layer_norm ? -0.0f
                                                                                    : 1.0f);
}

// The larger ones of each two elements, and NaN where one is NaN.
template <class T, int V>
__device__ __forceinline__ void take_larger(Vector<T, V>& largest, const Vector<T, V>& x) {
  if constexpr (sizeof(T) == 2) {  // two at a time
    using Pair = std::conditional_t<std::is_same_v<T, Half>, __half2, __nv_bfloat162>;
    largest.bits =
        by_words([](uint32_t a, uint32_t b) { return bit_cast<uint32_t>(__hmax2_nan(bit_cast<Pair>(a), bit_cast<Pair>(b))); },
                 largest.bits, x.bits);
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) largest.set(j, larger(largest[j], x[j]));
  }
}

// The numbers of all rows of a thread. Roots and logarithms take many instructions: of several rows each thread finishes one.
template <RowFunction f, class A, class Sum, int U>
__device__ __forceinline__ void finish_rows(RowNumbers<A> (&row)[U], const Sum (&sum)[U], const RowsArgs& a) {
  if (!has_result(f) && !a.r) return;
  if (U > 1 && !takes_grad(f) && a.threads >= U) {
    const int thread = threadIdx.x & (a.threads - 1), begin = threadIdx.x % kWarp - thread, own = thread % U;
    RowNumbers<A> mine = row[0];
    Sum own_sum = sum[0];
#pragma unroll
    for (int u = 1; u < U; ++u) {
      mine.mean = choose(own == u, row[u].mean, mine.mean);
      own_sum = choose(own == u, sum[u], own_sum);
    }
    finish_row<f>(mine, own_sum, a.length, a.eps);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if constexpr (f == RowFunction::layer_norm) row[u].mean = shuffle(mine.mean, begin + u);
      row[u].r = shuffle(mine.r, begin + u);
    }
  } else {
#pragma unroll
    for (int u = 0; u < U; ++u) finish_row<f>(row[u], sum[u], a.length, a.eps);
  }
}

// A row's first thread writes the numbers that its threads found.
template <RowFunction f, class A, class Sum, class T>
__device__ __forceinline__ void write_numbers(const RowsArgs& a, int64_t index, const RowNumbers<A>& row, Sum sum, const T* x) {
  if constexpr (writes_numbers(f)) {
    if (has_mean(f) && a.mean) reinterpret_cast<A*>(a.mean)[index] = row.mean;
    if (a.r) reinterpret_cast<A*>(a.r)[index] = row.r;
  }
  if constexpr (f == RowFunction::log_sum)
    if (a.sum) reinterpret_cast<A*>(a.sum)[index] = sum;
  if constexpr (!has_result(f)) write_loss<f>(a.loss, index, row, sum, [&](int64_t i) { return static_cast<A>(value(x[i])); });
}

// A thread holds H times D vectors of a row: D vectors that are 512 elements apart, and that H times, a warp's width apart. It
// holds U rows at once. U is 1 where a row has more than one warp. kVectors: rows are whole vectors at aligned addresses.
// kOnce: registers hold the row, otherwise it is read again for each step, in a.rounds rounds.
template <RowFunction f, class T, class R, int H, int D, int U, bool kVectors, bool kOnce>
__global__ void __launch_bounds__(D < kDepth ? kFewRowThreads : kRowThreads<f, T>)
    rows_kernel(const __grid_constant__ RowsArgs a) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Sum = decltype(row_addend<f, A>({}, {}));
  constexpr int V = kGranule / sizeof(T), kChunkThreads = kLanes / V / H;
  constexpr bool kTail = !kVectors && D == kDepth, kWarps = D > 1 && kChunkThreads > kWarp;  // several of them have a chunk
  using Vectors = RowVectors<T, V, H, D, kVectors, kTail>;
  __shared__ A first_slots[kMostRowWarps], firsts_of_blocks[kMaxCluster];  // of a largest element, or a layer_norm's c
  __shared__ __align__(16) char sum_slots[(kMostRowWarps + kMaxCluster) * sizeof(Sum)];
  Sum(&slots)[kMostRowWarps] = *reinterpret_cast<Sum(*)[kMostRowWarps]>(sum_slots);
  Sum(&sums_of_blocks)[kMaxCluster] = *reinterpret_cast<Sum(*)[kMaxCluster]>(sum_slots + sizeof(slots));
  const auto larger_of = [](A p, A q) { return larger(p, q); };
#if __CUDA_ARCH__ >= 900
  if (has_sum(f) && a.cluster > 1) __cluster_barrier_arrive_relaxed();
#endif
  wait_for_previous_kernel();
  allow_next_kernel();

  const int thread = threadIdx.x & (a.threads - 1), row_of_block = threadIdx.x >> a.log_threads;
  const int block_rows = blockDim.x >> a.log_threads, part = blockIdx.x % a.cluster;
  const int64_t first_row = int64_t{blockIdx.x / static_cast<uint32_t>(a.cluster)} * block_rows * a.in_flight + row_of_block;
  const bool is_first = thread == 0 && part == 0;
  const auto index_of = [&](int u) { return first_row + u * block_rows; };
  const auto exists = [&](int u) { return u < a.in_flight && index_of(u) < a.rows; };

  const T *row_x[U], *row_g[U];
  R* row_y[U];
  const T missing = missing_x<f, T>();
  int shift[U];
  RowGradient<A> gradient[U];
  RowNumbers<A> row[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t index = exists(u) ? index_of(u) : 0;
    row_x[u] = reinterpret_cast<const T*>(a.x.begin + a.along.offset(kRowX, index));
    row_g[u] = takes_grad(f) ? reinterpret_cast<const T*>(a.g.begin + a.along.offset(kRowG, index)) : nullptr;
    row_y[u] = has_result(f) ? reinterpret_cast<R*>(a.y + a.along.offset(kRowY, index)) : nullptr;
    shift[u] = kVectors ? 0 : has_result(f) ? past_vector<R, V>(row_y[u]) : past_vector<T, V>(row_x[u]);
    if constexpr (reads_numbers(f)) {
      if constexpr (has_mean(f)) row[u].mean = reinterpret_cast<const A*>(a.mean)[index];
      row[u].r = reinterpret_cast<const A*>(a.r)[index];
    }
    if constexpr (f == RowFunction::log_prob_backward) {
      gradient[u] = row_gradient<A>(a.loss, index);
      row[u].share = gradient[u].share;
    }
  }

  // The threads' elements in a round.
  typename Vectors::Place place[U];
  Vectors x[U], g[U];
  const auto load = [&](int round) {
    const int64_t thread_of_row = (int64_t{part} * a.rounds + round) * a.threads + thread;
    const int of_chunk = static_cast<int>(thread_of_row % kChunkThreads);
    const int begin = (of_chunk / kWarp * kWarp * H + of_chunk % kWarp) * V;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int64_t length = exists(u) ? a.length : 0, first = thread_of_row / kChunkThreads * kChunk + begin - shift[u];
      const int end = static_cast<int>(min(max(length - first, int64_t{-kChunk}), int64_t{2 * kChunk}));
      place[u] = {first, begin == 0 ? shift[u] : 0, end, kTail && begin == 0 ? min(end, kChunk + shift[u]) : 0};
      x[u].start(row_x[u], length, place[u], a.x_moved, missing, a.x, a.policy);
      if constexpr (takes_grad(f)) g[u].start(row_g[u], length, place[u], a.g_moved, element_of<T>(-0.0f), a.g, a.policy);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      x[u].finish(row_x[u], place[u], a.x_moved, missing, a.policy);
      if constexpr (takes_grad(f)) g[u].finish(row_g[u], place[u], a.g_moved, element_of<T>(-0.0f), a.policy);
    }
  };
  // Calls do_vector(h, d) for each vector, but not for those beyond all rows.
  const auto each = [&](auto do_vector) {
    place[0].each([&](int h, int d) {
      if (D == kDepth || d == 0 || place[0].at(h, d) < a.length + (kVectors ? 0 : V - 1)) do_vector(h, d);
    });
  };
  const auto x_of = [&](int u, int h, int d, int j) { return static_cast<A>(value(x[u].of[h][d][j])); };
  const int rounds = kOnce ? 1 : a.rounds;
  if constexpr (kOnce) load(0);

  if constexpr (takes_largest(f)) {
    Vector<T, V> largest[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
#pragma unroll
      for (int j = 0; j < V; ++j) largest[u].set(j, missing);
    }
    for (int round = 0; round < rounds; ++round) {
      if constexpr (!kOnce) load(round);
      each([&](int h, int d) {
#pragma unroll
        for (int u = 0; u < U; ++u) take_larger(largest[u], x[u].of[h][d]);
      });
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      A found = -INFINITY;
#pragma unroll
      for (int j = 0; j < V; ++j) found = larger(found, static_cast<A>(value(largest[u][j])));
      found = join_row(found, A(-INFINITY), a.threads, first_slots, larger_of);
      row[u].mean = join_blocks(found, A(-INFINITY), a.cluster, firsts_of_blocks, larger_of);
    }
  }

  // The elements of a vector of each row, with weights where the function has them.
  const auto elements = [&](int h, int d, RowElement<A>(&e)[U][V]) {
    A w[V], b[V];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int at = place[u].at(h, d), begin = place[u].begin_of(h, d), end = place[u].end_of(h, d);
      if constexpr (is_norm(f)) {
        const auto load = [&](A(&to)[V], const InputSpan& from, A none) {
          load_weights<kVectors, T>(to, from, place[u].first + at, begin, end, a.float_weight, none, a.weight_policy);
        };
        if (!kVectors || u == 0) {  // whole vectors of all rows have the same weights
          load(w, a.weight, A(1));
          if constexpr (f == RowFunction::layer_norm) load(b, a.bias, A(0));
        }
      }
#pragma unroll
      for (int j = 0; j < V; ++j) {
        e[u][j].x = x_of(u, h, d, j);
        if constexpr (takes_grad(f)) e[u][j].g = static_cast<A>(value(g[u].of[h][d][j]));
        if constexpr (f == RowFunction::log_prob_backward)
          e[u][j].g = gradient[u].target == place[u].first + at + j ? gradient[u].own : A(0);
        if constexpr (is_norm(f)) e[u][j].w = w[j];
        if constexpr (f == RowFunction::layer_norm) e[u][j].b = b[j];
        if constexpr (f == RowFunction::layer_norm_backward)  // (mean - mean) * r is +0, and -0.0 * +0 the identity
          e[u][j].x = j >= begin && j < end ? e[u][j].x : row[u].mean;
      }
    }
  };

  constexpr bool kKeeps = kOnce && f == RowFunction::softmax;  // the exponentials
  A kept[kKeeps ? U : 1][H][D][V];
  // Adds up what a function adds of each row. No other join has used these slots.
  const auto add_up = [&](auto function, auto& sum, auto& slots, auto& sums_of_blocks) {
    constexpr RowFunction added = function.value;
    using Addend = decltype(row_addend<added, A>({}, {}));
    const auto sum_of = [](Addend p, Addend q) { return p + q; };
    Addend waiting[kOnce ? 1 : kChunkLevels];
    for (int round = 0; round < rounds; ++round) {
      if constexpr (!kOnce) load(round);
      RowLaneSums<Addend, V> lanes[U][H];
      each([&](int h, int d) {
        RowElement<A> e[U][V];
        if constexpr (takes_grad(added)) elements(h, d, e);
#pragma unroll
        for (int u = 0; u < U; ++u) {
          const int begin = place[u].begin_of(h, d), end = place[u].end_of(h, d);
#pragma unroll
          for (int j = 0; j < V; ++j) {
            if constexpr (!takes_grad(added)) e[u][j].x = x_of(u, h, d, j);
            // Of an element that does not exist the difference is +0. Whether a sum of differences is +0 or -0 shows nowhere.
            if constexpr (added == RowFunction::layer_norm)
              e[u][j].x = (kVectors ? end > 0 : j >= begin && j < end) ? e[u][j].x : row[u].mean;
            const Addend addend = row_addend<added>(e[u][j], row[u]);
            if constexpr (kKeeps)
              if (d < D) kept[u][h][d][j] = addend;
            lanes[u][h].sum[j] = d == 0 ? addend : lanes[u][h].sum[j] + addend;
          }
        }
      });
      if (!kOnce) __syncthreads();  // all have read the slots of the round before
#pragma unroll
      for (int u = 0; u < U; ++u) {
        if constexpr (!kVectors) move_lanes<kWarps, kChunkThreads>(lanes[u], shift[u], a.threads);
        Addend values[H];
#pragma unroll
        for (int h = 0; h < H; ++h) values[h] = join_neighbours(lanes[u][h].sum);
        sum[u] = join_row(values, no_addend<Addend>(), a.threads, slots, sum_of);
        if constexpr (!kOnce) carry(waiting, sum[u], round);
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if constexpr (!kOnce) sum[u] = joined(waiting, int64_t{rounds}, no_addend<Addend>());
      sum[u] = join_blocks(sum[u], no_addend<Addend>(), a.cluster, sums_of_blocks, sum_of);
    }
  };
  if constexpr (f == RowFunction::layer_norm) {
    constexpr RowFunction kCenter = RowFunction::center;
    A sum[U];
    add_up(std::integral_constant<RowFunction, kCenter>(), sum, first_slots, firsts_of_blocks);
#pragma unroll
    for (int u = 0; u < U; ++u) finish_row<kCenter>(row[u], sum[u], a.length, a.eps);
  }
  if constexpr (has_sum(f)) {
    Sum sum[U];
    add_up(std::integral_constant<RowFunction, f>(), sum, slots, sums_of_blocks);
    finish_rows<f>(row, sum, a);
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (is_first && exists(u)) write_numbers<f>(a, index_of(u), row[u], sum[u], row_x[u]);
#if __CUDA_ARCH__ >= 900
    if (a.cluster > 1) __cluster_barrier_wait();
#endif
  }

  if constexpr (has_result(f)) {
    for (int round = 0; round < rounds; ++round) {
      if constexpr (!kOnce) load(round);
      each([&](int h, int d) {
        RowElement<A> e[U][V];
        if constexpr (!kKeeps) elements(h, d, e);
#pragma unroll
        for (int u = 0; u < U; ++u) {
          const int begin = place[u].begin_of(h, d), end = place[u].end_of(h, d);
          if (end <= 0) continue;
          A y[V];
#pragma unroll
          for (int j = 0; j < V; ++j) {
            if (kKeeps && d < D) {
              y[j] = kept[u][h][d][j] * row[u].r;
            } else {
              if constexpr (kKeeps) e[u][j].x = x_of(u, h, d, j);
              y[j] = row_applied<f>(e[u][j], row[u]);
            }
          }
          R rounded[V];
          round_all(rounded, y);
          R* const to = row_y[u] + place[u].first + place[u].at(h, d);
          if (kVectors || (begin <= 0 && end >= V)) {
            store_granules([&](int j) { return to + j; }, rounded);
          } else {
#pragma unroll
            for (int j = 0; j < V; ++j)
              if (j >= begin && j < end) to[j] = rounded[j];
          }
        }
      });
    }
  }
}

// The plan's kernel. R: the results.
template <RowFunction f, class T, class R, bool kVectors>
auto rows_kernel_of(RowsKernel planned) {
  const auto kernel_of = [](auto kernel) {
    constexpr RowsTile kTile = rows_tile(kernel.value, f, sizeof(T));
    constexpr bool kOnce = kernel.value != RowsKernel::rounds;
    return rows_kernel<f, T, R, kTile.groups, kTile.depth, kTile.rows, kVectors, kOnce>;
  };
  using std::integral_constant;
  switch (planned) {
    case RowsKernel::warp: return kernel_of(integral_constant<RowsKernel, RowsKernel::warp>());
    case RowsKernel::pairs: return kernel_of(integral_constant<RowsKernel, RowsKernel::pairs>());
    case RowsKernel::quads: return kernel_of(integral_constant<RowsKernel, RowsKernel::quads>());
    case RowsKernel::chunks: return kernel_of(integral_constant<RowsKernel, RowsKernel::chunks>());
    default: return kernel_of(integral_constant<RowsKernel, RowsKernel::rounds>());
  }
}

template <RowFunction f, class T, class R>
cudaError_t start_rows(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  RowsArgs a{};
  a.x = span_of(call, kRowX);
  a.g = span_of(call, kRowG);
  a.weight = span_of(call, kRowWeight);
  a.bias = span_of(call, kRowBias);
  a.y = call.operands[kRowY].data;
  a.mean = static_cast<char*>(call.mean);
  a.r = static_cast<char*>(call.r);
  a.sum = static_cast<char*>(call.sum);
  a.loss = call.loss;
  a.along = call.along;
  a.rows = call.rows;
  a.length = call.length;
  a.eps = call.eps;
  const DType weight = call.operands[kRowWeight].data ? call.operands[kRowWeight].dtype : call.operands[kRowBias].dtype;
  a.float_weight = weight == DType::Float;
  a.x_moved = plan.x_moved;
  a.g_moved = plan.g_moved;
  a.threads = plan.threads;
  a.log_threads = __builtin_ctz(a.threads);
  a.rounds = plan.rounds;
  a.cluster = plan.cluster;
  a.in_flight = plan.in_flight;
  a.policy = l2_policy(plan.streams);
  a.weight_policy = l2_policy();
  const auto kernel = plan.vectors ? rows_kernel_of<f, T, R, true>(plan.kernel) : rows_kernel_of<f, T, R, false>(plan.kernel);
  return start_kernel(queue, plan.grid(), dim3(plan.block_threads()), 0, kernel, a);
}

}  // namespace gpureduce::cuda
