// Sums of exponentials on the CPU: the executable specification of their order.
#pragma once

#include "../core/api.h"
#include "../core/cpu/kernels.h"
#include "../core/problem/geometry.h"

namespace gpureduce::cpu {

// to[i] = e^(x[i] - m[i * step]), for T float or double.
template <class T>
void exponentials(const T* x, const T* m, int64_t step, int64_t n, T* to) {
  const InstructionSet& set = instruction_set();
  if constexpr (sizeof(T) == sizeof(float)) set.exponentials_of_floats(x, m, step, n, to);
  else set.exponentials_of_doubles(x, m, step, n, to);
}

// An output's largest element has the output's number; if `beside_results`, the place of its result.
GPUREDUCE_API void run_exponents(const Reduction& reduction, bool beside_results = false);

// Writes the logarithms to `out`, of dtype `t`, at the places of the problem's outputs. Accumulator: of `sums` and `largest`,
// which are in the order of the outputs' numbers.
GPUREDUCE_API void finish_exponents(Accumulator type, const void* sums, const void* largest, const Problem& problem, void* out,
                                    DType t);

}  // namespace gpureduce::cpu
