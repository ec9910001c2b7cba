// Sums of exponentials on the CPU: the executable specification of their order.
#pragma once

#include "../problem/geometry.h"

namespace gpureduce::cpu {

void run_exponents(const Reduction& reduction);

// Writes the logarithms to `out`, of dtype `t`, at the places of the problem's outputs. Accumulator: of `sums` and `largest`,
// which are in the order of the outputs' numbers.
void finish_exponents(Accumulator type, const void* sums, const void* largest, const Problem& problem, void* out, DType t);

}  // namespace gpureduce::cpu
