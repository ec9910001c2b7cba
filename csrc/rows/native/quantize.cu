// Rows that are rounded to float8 in one pass: elements, silu(x) * y, or an rms_norm, also of a sum that is stored.
//
// For example the norm of x + residual, rows of 4096 bfloat16, a scale per 128 elements. 64 threads have a row. Thread 3 loads
// 8 vectors of 8 neighbours of both: the elements 24 to 31, 536 to 543, and so on, 512 apart. It adds, rounds and stores the
// sums, and keeps them. It adds the squares of elements that are 512 apart, which makes 8 lanes; lanes, threads and warps join
// nearest neighbours first. Then it applies the row's number and the weights to each vector, and rounds to bfloat16. The 16
// threads that have elements 0 to 127 find the largest magnitude by four shuffles, say 3.5. The scale is 3.5 / 448 = 0.0078125,
// which the first of them stores. Each thread divides its 8 numbers by the scale, and stores 8 bytes.
#include "../../core/numeric/apply.h"
#include "../../core/numeric/quantize.h"
#include "../rows.cuh"

namespace gpureduce::cuda {

namespace {

struct QuantizeArgs {
  InputSpan x, g, weight;
  char *sum, *values, *scales;
  RowDims along;
  int64_t rows, length, blocks;  // blocks: scales of a row
  double eps;
  float offset, most;  // -0.0: none is added
  uint64_t policy, weight_policy;
  int threads, log_threads;
  int log_block;  // -1: a row has one scale
  bool silu, float_weight, e4m3, powers;
};

// Divides by one scale. The reciprocal is rounded to nearest, and the remainder corrects a quotient twice: first it comes
// within its last place, then it is the number that division gives (Markstein). That holds where no remainder is subnormal. So
// a scale far from 1, and what is divided by it, are multiplied by a power of two first. Quotients that are too small for that
// are far below the smallest float8. They keep the sign.
struct Divisor {
  float factor, scale, inverse;

  __device__ __forceinline__ explicit Divisor(float by)
      : factor(by < 0x1p-60f  ? 0x1p100f
               : by > 0x1p60f ? 0x1p-80f
                              : 1.0f),
        scale(by * factor),
        inverse(1.0f / scale) {}

  __device__ __forceinline__ float quotient(float x) const {
    const float scaled = x * factor, first = scaled * inverse;
    const float near = fused(fused(-scale, first, scaled), inverse, first);
    return copysignf(fused(fused(-scale, near, scaled), inverse, near), x);
  }
};

// The largest magnitude of a vector, as the bits of float32.
template <class T, int V>
__device__ __forceinline__ uint32_t largest_magnitude(const Vector<T, V>& x) {
  constexpr uint32_t kMask = sizeof(T) == 2 ? 0x7fff7fffu : 0x7fffffffu;
  uint32_t found = x.word(0) & kMask;
#pragma unroll
  for (int w = 1; w < kGranule / 4; ++w) {
    if constexpr (sizeof(T) == 2) found = __vmaxu2(found, x.word(w) & kMask);  // two at a time
    else found = max(found, x.word(w) & kMask);
  }
  if constexpr (sizeof(T) == 2) return magnitude_bits(value(T{static_cast<uint16_t>(max(found & 0xffffu, found >> 16))}));
  else return found;
}

// Stores V quotients as float8.
template <__nv_fp8_interpretation_t kFormat, int V>
__device__ __forceinline__ void store_float8(char* to, const float (&q)[V]) {
  uint32_t words[V / 4];
#pragma unroll
  for (int j = 0; j < V; j += 4) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2({q[j], q[j + 1]}, __NV_SATFINITE, kFormat);
    const uint32_t high = __nv_cvt_float2_to_fp8x2({q[j + 2], q[j + 3]}, __NV_SATFINITE, kFormat);
    words[j / 4] = low | high << 16;
  }
  typename Word<V>::type all;
  memcpy(&all, words, V);
  *reinterpret_cast<decltype(all)*>(to) = all;
}

template <class T, bool kNorm>
constexpr int kQuantizeThreads = kMostQuantized / (kGranule / sizeof(T)) / quantize_depth(kNorm);

// T: the elements of x. G: of g, and of what a norm is of.
template <class T, class G, bool kNorm>
__global__ void __launch_bounds__(kQuantizeThreads<T, kNorm>) quantize_kernel(const __grid_constant__ QuantizeArgs a) {
  constexpr RowFunction f = RowFunction::rms_norm;
  constexpr int V = kGranule / sizeof(T), D = quantize_depth(kNorm), kChunkThreads = kLanes / V, N = granule_values<G>(V);
  __shared__ float sum_slots[kMostRowWarps];
  __shared__ uint32_t largest_slots[kMostRowWarps];
  wait_for_previous_kernel();
  allow_next_kernel();
  const int thread = threadIdx.x & (a.threads - 1), length = static_cast<int>(a.length);
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x >> a.log_threads) + (threadIdx.x >> a.log_threads);
  const bool exists = row < a.rows;
  const int64_t index = exists ? row : 0;
  const int step = kNorm ? kLanes : a.threads * V;
  const int first = kNorm ? thread / kChunkThreads * kChunk + thread % kChunkThreads * V : thread * V;
  const auto at = [&](int d) { return first + d * step; };
  const auto is_there = [&](int d) { return exists && at(d) < length; };
  // Calls f(d) for the vectors that some thread of the row has.
  const auto each = [&](auto f) {
#pragma unroll
    for (int d = 0; d < D; ++d)
      if (d * step < length) f(d);
  };

  Vector<T, V> x[D];
  Vector<G, N> g[D][V / N];
  const T* const row_x = reinterpret_cast<const T*>(a.x.begin + a.along.offset(kRowX, index));
  const G* const row_g = reinterpret_cast<const G*>(a.g.begin + a.along.offset(kRowG, index));
#pragma unroll
  for (int d = 0; d < D; ++d) {
    x[d] = load_vector_if<T, V>(is_there(d), row_x + at(d), a.policy, {});
#pragma unroll
    for (int i = 0; i < V / N; ++i)
      g[d][i] = load_vector_if<G, N>(a.g.begin && is_there(d), row_g + at(d) + i * N, a.policy, padding_vector<G, N>().bits);
  }

  // What is normalized replaces g; what is rounded to float8 replaces x.
  RowNumbers<float> numbers;
  if constexpr (kNorm) {
    RowLaneSums<float, V> lanes;
    G* const row_sum = reinterpret_cast<G*>(a.sum) + index * a.length;
    each([&](int d) {
      float added[V];  // g is -0.0 where there is none
      G rounded[V];
#pragma unroll
      for (int j = 0; j < V; ++j) added[j] = value(x[d][j]) + value(g[d][j / N][j % N]);
      round_all(rounded, added);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float kept = value(rounded[j]);
        g[d][j / N].set(j % N, rounded[j]);
        const float addend = row_addend<f>(RowElement<float>{kept, 0, 1, 0}, numbers);
        lanes.sum[j] = d == 0 ? addend : lanes.sum[j] + addend;
      }
      if (a.g.begin && is_there(d)) store_granules([&](int j) { return row_sum + at(d) + j; }, rounded);
    });
    float values[1] = {join_neighbours(lanes.sum)};
    const float sum = join_row(values, no_addend<float>(), a.threads, sum_slots, [](float p, float q) { return p + q; });
    finish_row<f>(numbers, sum, a.length, a.eps);
  }
  uint32_t largest[D] = {};
  each([&](int d) {
    if (kNorm || a.silu) {
      float y[V], w[V];
      if constexpr (kNorm) load_weights<true, T>(w, a.weight, at(d), 0, length - at(d), a.float_weight, 1.0f, a.weight_policy);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float other = value(g[d][j / N][j % N]);
        if constexpr (kNorm) y[j] = row_applied<f>(RowElement<float>{other, 0, w[j] + a.offset, 0}, numbers);
        else y[j] = silu(value(x[d][j])) * other;
      }
      T rounded[V];
      round_all(rounded, y);
#pragma unroll
      for (int j = 0; j < V; ++j) x[d].set(j, rounded[j]);
    }
    largest[d] = is_there(d) ? largest_magnitude(x[d]) : 0;
  });

  const auto larger_of = [](uint32_t p, uint32_t q) { return max(p, q); };
  const int group = a.log_block < 0 ? a.threads : min((1 << a.log_block) / V, a.threads);
  if (a.log_block < 0) {
#pragma unroll
    for (int d = 1; d < D; ++d) largest[0] = max(largest[0], largest[d]);
    const uint32_t found = join_row(largest[0], 0u, a.threads, largest_slots, larger_of);
#pragma unroll
    for (int d = 0; d < D; ++d) largest[d] = found;
  } else {
    for (int near = 1; near < group; near *= 2) {
#pragma unroll
      for (int d = 0; d < D; ++d) largest[d] = max(largest[d], shuffle_xor(largest[d], near));
    }
  }

  each([&](int d) {
    if (!is_there(d)) return;
    const float scale = scale_of(bit_cast<float>(largest[d]), a.most, a.powers);
    if ((thread & (group - 1)) == 0 && (a.log_block >= 0 || d == 0)) {
      const int64_t place = row * a.blocks + (a.log_block < 0 ? 0 : at(d) >> a.log_block);
      if (a.powers) reinterpret_cast<uint8_t*>(a.scales)[place] = exponent_of(scale);
      else reinterpret_cast<float*>(a.scales)[place] = scale;
    }
    const Divisor divisor(scale);
    float q[V];
#pragma unroll
    for (int j = 0; j < V; ++j) q[j] = divisor.quotient(value(x[d][j]));
    char* const to = a.values + row * a.length + at(d);
    if (a.e4m3) store_float8<__NV_E4M3>(to, q);
    else store_float8<__NV_E5M2>(to, q);
  });
}

template <class T, class G, bool kNorm>
cudaError_t start_quantize(const QuantizeCall& call, const QuantizePlan& plan, Queue queue) {
  const RowsCall& rows = call.rows;
  QuantizeArgs a{};
  a.x = span_of(rows, kRowX);
  a.g = span_of(rows, kRowG);
  a.weight = span_of(rows, kRowWeight);
  a.sum = static_cast<char*>(call.sum);
  a.values = static_cast<char*>(call.values);
  a.scales = static_cast<char*>(call.scales);
  a.along = rows.along;
  a.rows = rows.rows;
  a.length = rows.length;
  a.blocks = call.blocks();
  a.eps = rows.eps;
  a.offset = call.offset == 0 ? -0.0f : call.offset;
  a.most = most_of(call.dtype);
  a.policy = l2_policy(plan.streams);
  a.weight_policy = l2_policy();
  a.threads = plan.threads;
  a.log_threads = __builtin_ctz(plan.threads);
  a.log_block = call.block ? __builtin_ctzll(call.block) : -1;
  a.silu = call.what == Rounded::silu;
  a.float_weight = rows.operands[kRowWeight].dtype == DType::Float;
  a.e4m3 = call.dtype == DType::Float8_e4m3fn;
  a.powers = call.powers;
  const Grid grid{static_cast<uint32_t>(plan.blocks)};
  return start_kernel(queue, grid, dim3(plan.block_threads()), 0, quantize_kernel<T, G, kNorm>, a);
}

template <class T>
cudaError_t run_typed(const QuantizeCall& call, const QuantizePlan& plan, Queue queue) {
  if (call.what != Rounded::norm) return start_quantize<T, T, false>(call, plan, queue);
  const bool wide = call.rows.operands[kRowG].data && call.rows.operands[kRowG].dtype == DType::Float;
  return wide ? start_quantize<T, float, true>(call, plan, queue) : start_quantize<T, T, true>(call, plan, queue);
}

}  // namespace

cudaError_t run_rows(const QuantizeCall& call, const QuantizePlan& plan, const Device& device, cudaStream_t stream) {
  const DType t = call.rows.operands[kRowX].dtype;
  const auto run = t == DType::Half ? run_typed<Half> : t == DType::BFloat16 ? run_typed<BFloat16> : run_typed<float>;
  return run(call, plan, {stream, device.early});
}

}  // namespace gpureduce::cuda
