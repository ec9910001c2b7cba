// From a call of a function that keeps its input's shape to the kernel of its dtypes.
#pragma once

#include "rows.cuh"

namespace gpureduce::cuda {

// Elements T and results R of any function forward, or of any one backward: each is a source file, for builds in parallel.
template <class T, class R, bool kBackward>
cudaError_t launch_rows(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  return with_row_function(call.function, [&](auto f) {
    constexpr bool kLossOfHalves = f.value == RowFunction::quotient && sizeof(T) == 2;  // losses have no such dtype
    if constexpr (is_backward(f.value) != kBackward || kLossOfHalves) return kNoKernel;
    else return start_rows<f.value, T, R>(call, plan, queue);
  });
}

// Results of another dtype, which softmaxes alone have: to float32 forward, from it backward.
template <class T, class R>
cudaError_t launch_softmaxes(const RowsCall& call, const RowsPlan& plan, Queue queue) {
  constexpr bool kBackward = std::is_same_v<T, float>;
  constexpr RowFunction kFirst = kBackward ? RowFunction::softmax_backward : RowFunction::softmax;
  constexpr RowFunction kSecond = kBackward ? RowFunction::log_softmax_backward : RowFunction::log_softmax;
  if (call.function == kFirst) return start_rows<kFirst, T, R>(call, plan, queue);
  if (call.function == kSecond) return start_rows<kSecond, T, R>(call, plan, queue);
  return kNoKernel;
}

}  // namespace gpureduce::cuda
