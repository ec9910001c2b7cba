// Weighted sums on the CPU: the executable specification of their order.
#pragma once

#include "../core/api.h"
#include "../core/problem/geometry.h"

namespace gpureduce::cpu {

GPUREDUCE_API void run_weighted(const Reduction& reduction);

}  // namespace gpureduce::cpu
