// Functions that keep their input's shape, on torch's intra-op threads: each takes some rows.
#include "cpu.h"

#include <algorithm>

#include "../core/cpu/exact_floats.h"
#include "../core/cpu/kernels.h"
#include "../core/cpu/scratch.h"
#include "../core/cpu/threads.h"

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

}  // namespace

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
