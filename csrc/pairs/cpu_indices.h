// The indices of largest and smallest elements on the CPU.
#pragma once

#include "../core/api.h"
#include "../core/problem/geometry.h"

namespace gpureduce::cpu {

GPUREDUCE_API void run_indices(const Reduction& reduction);

}  // namespace gpureduce::cpu
