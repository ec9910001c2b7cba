// The steps of a function that keeps its input's shape (rows.h), one at a time: for rows that are cut over ranks, whose sums
// are joined between the steps. Pure C++: no torch, no CUDA.
#pragma once

#include "rows.h"

namespace gpureduce {

// What is made of an element: what is added up, which may be two addends; what the gradient of a norm's weight adds up; or the
// result.
enum class RowStep : uint8_t { addends, second_addends, weight_addends, applied };

template <RowFunction f, class A>
GPUREDUCE_HOST_DEVICE A row_step(RowStep step, const RowElement<A>& e, const RowNumbers<A>& row) {
  if (step == RowStep::applied) return row_applied<f>(e, row);
  if (step == RowStep::weight_addends) return weight_addend(e.x, e.g, row.mean, row.r);
  const auto addend = row_addend<f>(e, row);
  if constexpr (std::is_floating_point_v<std::decay_t<decltype(addend)>>) return addend;
  else return step == RowStep::second_addends ? addend.second : addend.first;
}

// A row's numbers from its sums. `other` is m of a softmax; of two sums `sum` is T and `other` S. The mean of a layer_norm
// lacks c, which is not known here.
template <RowFunction f, class A>
GPUREDUCE_HOST_DEVICE RowNumbers<A> row_numbers(const void* sum, const void* other, int64_t index, int64_t length, double eps) {
  RowNumbers<A> row;
  if constexpr (has_sum(f)) {
    const A total = static_cast<const A*>(sum)[index], more = other ? static_cast<const A*>(other)[index] : A(0);
    if constexpr (takes_largest(f)) row.mean = more;
    using Sum = decltype(row_addend<f, A>({}, {}));
    if constexpr (std::is_floating_point_v<Sum>) finish_row<f>(row, total, length, eps);
    else finish_row<f>(row, TwoSums<A>{more, total}, length, eps);
  }
  return row;
}

// Writes them: of a backward pass the shares.
template <RowFunction f, class A>
GPUREDUCE_HOST_DEVICE void store_numbers(const RowNumbers<A>& row, void* first, void* second, int64_t index) {
  static_cast<A*>(first)[index] = takes_grad(f) ? row.first_share : row.mean;
  static_cast<A*>(second)[index] = takes_grad(f) ? row.share : row.r;
}

}  // namespace gpureduce
