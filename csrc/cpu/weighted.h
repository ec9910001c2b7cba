// Weighted sums on the CPU: the executable specification of their order.
#pragma once

#include "../problem/geometry.h"

namespace gpureduce::cpu {

void run_weighted(const Reduction& reduction);

}  // namespace gpureduce::cpu
