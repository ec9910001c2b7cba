// Weighted sums on the CPU: the executable specification of their order.
#pragma once

#include "../api.h"
#include "../problem/geometry.h"

namespace gpureduce::cpu {

GPUREDUCE_API void run_weighted(const Reduction& reduction);

}  // namespace gpureduce::cpu
