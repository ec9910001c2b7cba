// Sums of segments on the CPU.
#pragma once

#include "../core/api.h"
#include "../core/problem/segment.h"

namespace gpureduce::cpu {

// Sums all segments on torch's intra-op threads. The caller has checked the offsets, and that the input is not empty.
GPUREDUCE_API void run(const Segments& segments);

// Sets how many bytes of gathered rows are summed at a time, unless one segment has more, and returns the number before. For
// tests.
GPUREDUCE_API int64_t set_gathered_bytes(int64_t bytes);

}  // namespace gpureduce::cpu
