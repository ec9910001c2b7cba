// Losses of rows whose classes are named: what one thread writes of a row once its sum is known, and what the gradient of the
// row's elements needs. One source for CPU and GPU. Pure C++: no torch, no CUDA.
//
// For example the row 1, 3, 2 of class 2: m is 3 and log(S) 0.4076. The logarithm of the class's probability is
// (2 - 3) - 0.4076 = -1.4076; of the weight 0.5, the loss is 0.7038.
#pragma once

#include <cassert>

#include "rows.h"

namespace gpureduce {

struct RowTargets {
  const void* classes = nullptr;  // per row the index of its class; null: no row has one
  DType dtype = DType::Long;      // int64, int32 or uint8
  int64_t count = 0;              // of classes; 0: they are not checked
  int64_t ignored = -1;           // rows of this index have no class

  // The class of a row, or a negative number. An index that is no class stops a kernel on a GPU. On a CPU it was refused
  // before, unless another thread has written it since: then the row has no class.
  GPUREDUCE_HOST_DEVICE int64_t of(int64_t row) const {
    if (!classes) return -1;
    // volatile: it is read once, so what is checked is what is used.
    const int64_t found = dtype == DType::Long  ? static_cast<const volatile int64_t*>(classes)[row]
                          : dtype == DType::Int ? static_cast<const volatile int32_t*>(classes)[row]
                                                : static_cast<const volatile uint8_t*>(classes)[row];
    if (found == ignored) return -1;
    const bool fits = count == 0 || (found >= 0 && found < count);
#ifdef __CUDA_ARCH__
    assert(fits && "a target is out of bounds");
#endif
    return fits ? found : -1;
  }
};

// All memory is contiguous. Numbers are float64 in wide calls, and otherwise float32. Null: not wanted, or none.
struct RowLoss {
  RowTargets targets;
  bool is_loss = false;          // otherwise the logarithm of the class's probability
  double z = 0;                  // a loss also has z * (m + log(S))^2
  const void* weight = nullptr;  // per class, of losses
  void* shift = nullptr;         // per row: m + log(S), where z is not 0
  // Written by log_sum per row, and by quotient: the result, and how much it counts. quotient divides by the sum of the counts,
  // or by a divisor.
  void* found = nullptr;
  DType dtype = DType::Float;  // of `found`: any floating one
  void* count = nullptr;
  bool by_counts = false;
  const void* divisor = nullptr;  // one number, also of gradients
  double number = 1;              // the divisor if the pointer is null
  // Read by log_prob_backward: the incoming gradient, `step` elements apart.
  const void* grad = nullptr;
  DType grad_dtype = DType::Float;
  int64_t step = 1;
};

// at(i): element i of the row.
template <RowFunction f, class A, class Sum, class At>
GPUREDUCE_HOST_DEVICE void write_loss(const RowLoss& loss, int64_t row, const RowNumbers<A>& numbers, Sum sum, At at) {
  if (!loss.found) return;
  A found = 0, count = 0;
  if constexpr (f == RowFunction::quotient) {
    count = loss.by_counts ? sum.second : loss.divisor ? *static_cast<const A*>(loss.divisor) : static_cast<A>(loss.number);
    found = sum.first / count;
  } else {
    const int64_t target = loss.targets.of(row);
    if (target >= 0) {
      count = loss.weight ? static_cast<const A*>(loss.weight)[target] : A(1);
      found = (at(target) - numbers.mean) - numbers.r;
      if (loss.is_loss) found = -found * count;
    }
    if (loss.z != 0) {
      const A shift = static_cast<A>(logarithm_of_sum(sum, numbers.mean));
      static_cast<A*>(loss.shift)[row] = shift;
      if (target >= 0) found = found + static_cast<A>(loss.z) * (shift * shift);
    }
  }
  store(loss.found, row, loss.dtype, found);
  if (loss.count) static_cast<A*>(loss.count)[row] = count;  // of quotient the divisor
}

// The class of a row, the gradient of its element before the softmax's part, and what the softmax is multiplied by.
template <class A>
struct RowGradient {
  int64_t target = -1;
  A own = 0, share = 0;
};

template <class A>
GPUREDUCE_HOST_DEVICE RowGradient<A> row_gradient(const RowLoss& loss, int64_t row) {
  const int64_t target = loss.targets.of(row);
  if (target < 0) return {};
  A g = 0;
  switch (loss.grad_dtype) {
#define GPUREDUCE_READ_GRAD(name, type, kind, accumulator, wide, family)               \
  case DType::name:                                                                    \
    if constexpr (Kind::kind == Kind::floating)                                        \
      g = static_cast<A>(value(static_cast<const type*>(loss.grad)[row * loss.step])); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_READ_GRAD)
#undef GPUREDUCE_READ_GRAD
  }
  if (loss.divisor) g = g / *static_cast<const A*>(loss.divisor);
  A shift = 0;
  if (loss.z != 0) {
    shift = (g * static_cast<A>(loss.z)) * static_cast<const A*>(loss.shift)[row];
    shift = shift + shift;
  }
  if (loss.is_loss) g = -(loss.weight ? g * static_cast<const A*>(loss.weight)[target] : g);
  return {target, g, g - shift};
}

}  // namespace gpureduce
