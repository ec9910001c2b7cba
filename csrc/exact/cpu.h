// Exact sums on the CPU.
#pragma once

#include "../core/api.h"
#include "../core/problem/exact.h"

namespace gpureduce::cpu {

// Computes `sum`, whose pointers are in host memory, on torch's intra-op threads. `length` and `outputs` are at least 1, and
// integers are not negated.
GPUREDUCE_API void run_exact(const ExactSum& sum);

GPUREDUCE_API void round_exact(const ExactRounding& rounding);

// Sets after how many additions numbers carry, at most 2^29, and returns the number before. For tests.
GPUREDUCE_API int64_t set_exact_additions(int64_t most);

}  // namespace gpureduce::cpu
