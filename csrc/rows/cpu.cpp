// Functions that keep their input's shape, on torch's intra-op threads: each takes some rows.
#include "cpu.h"

#include <algorithm>

#include "../core/cpu/exact_floats.h"
#include "../core/cpu/kernels.h"
#include "../core/cpu/scratch.h"
#include "../core/cpu/threads.h"
#include "../core/numeric/quantize.h"

namespace gpureduce::cpu {

namespace {

constexpr int64_t kTaskElements = 1 << 15;  // per task, if there are as many

// Calls part(begin, end, scratch) for parts of [0, n), each with an index of `elements` elements or more.
template <class F>
void for_each_part(int64_t n, int64_t elements, F part) {
  const int64_t grain = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, elements));
  parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    const ExactFloats exact;
    const Scratch memory(kRowBytes);
    part(begin, end, memory.get());
  });
}

// Rounds the n elements of a block to float8, and returns their scale.
template <class T, class R>
float quantize_block(const T* x, int64_t n, const QuantizeCall& call, R* values) {
  int32_t largest = 0;  // the order of bits is the one of magnitudes
  for (int64_t i = 0; i < n; ++i) {
    const int32_t own = static_cast<int32_t>(magnitude_bits(value(x[i])));
    largest = own > largest ? own : largest;
  }
  const float scale = scale_of(bit_cast<float>(largest), most_of(call.dtype), call.powers);
  for (int64_t i = 0; i < n; ++i) {
    const float quotient = value(x[i]) / scale;
    if constexpr (std::is_same_v<R, Float8_e4m3fn>) values[i].bits = saturated<4, 3>(quotient);
    else values[i].bits = saturated<5, 2>(quotient);
  }
  return scale;
}

template <class T, class R>
void quantize_rows(const QuantizeCall& call) {
  const RowsCall& rows = call.rows;
  const int64_t n = rows.length, size = call.block ? call.block : n, blocks = call.blocks();
  for_each_part(rows.rows * blocks, size, [&](int64_t begin, int64_t end, void*) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t row = b / blocks, first = b % blocks * size;
      const T* const x = reinterpret_cast<const T*>(rows.operands[kRowX].data + rows.along.offset(kRowX, row)) + first;
      const float scale = quantize_block(x, std::min(size, n - first), call, static_cast<R*>(call.values) + row * n + first);
      if (call.powers) static_cast<uint8_t*>(call.scales)[b] = exponent_of(scale);
      else static_cast<float*>(call.scales)[b] = scale;
    }
  });
}

template <class T>
void quantize_elements(const QuantizeCall& call) {
  call.dtype == DType::Float8_e4m3fn ? quantize_rows<T, Float8_e4m3fn>(call) : quantize_rows<T, Float8_e5m2>(call);
}

}  // namespace

void run(const QuantizeCall& call) {
  const DType t = call.rows.operands[kRowX].dtype;
  (t == DType::Half       ? quantize_elements<Half>
   : t == DType::BFloat16 ? quantize_elements<BFloat16>
                          : quantize_elements<float>)(call);
}

void run(const RowsCall& call) {
  for_each_part(call.rows, call.length,
                [&](int64_t begin, int64_t end, void* scratch) { instruction_set().rows(call, begin, end, scratch); });
}

void run(const RowStepCall& step) {
  for_each_part(step.call.rows, step.call.length,
                [&](int64_t begin, int64_t end, void* scratch) { instruction_set().row_step(step, begin, end, scratch); });
}

void run(const RowFinishCall& call) {
  for_each_part(call.rows, 1, [&](int64_t begin, int64_t end, void*) {
    with_row_function(call.function, [&](auto f) {
      const auto finish = [&](auto zero) {
        for (int64_t i = begin; i < end; ++i)
          store_numbers<f.value>(row_numbers<f.value, decltype(zero)>(call.sum, call.other, i, call.length, call.eps),
                                 call.first, call.second, i);
      };
      if (call.wide) finish(0.0);
      else finish(0.0f);
    });
  });
}

void run(const RowWeightsCall& weights) {
  constexpr int64_t kSide = 64;  // neighbouring columns that stay in one part
  const int64_t columns = weights.call.length;
  for_each_part((columns + kSide - 1) / kSide, kSide * weights.call.rows, [&](int64_t begin, int64_t end, void* scratch) {
    instruction_set().row_weights(weights, begin * kSide, std::min(columns, end * kSide), scratch);
  });
}

}  // namespace gpureduce::cpu
