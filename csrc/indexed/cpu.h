// Sorting by index on the CPU, on torch's intra-op threads.
#pragma once

#include "../core/api.h"
#include "../core/problem/index.h"

namespace gpureduce::cpu {

// Both return the first position whose index is not in [0, size), or -1. If there is one, the results mean nothing.

// There are entries and outputs.
GPUREDUCE_API int64_t sort_by_index(const IndexSort& sort);

// Writes the value at each entry's index: `order` has a position in `values` per entry.
GPUREDUCE_API int64_t gather_by_order(const Index& order, const IndexValues& values, float* out);

}  // namespace gpureduce::cpu
