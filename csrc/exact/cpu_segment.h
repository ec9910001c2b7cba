// Exact sums of segments on the CPU.
#pragma once

#include "../core/api.h"
#include "../core/problem/segment.h"

namespace gpureduce::cpu {

// The correctly rounded sums of all segments, of real elements and a floating result, on torch's intra-op threads. The caller
// has checked the offsets, and that the input is not empty. There is no gather, and integers are not negated.
GPUREDUCE_API void run_exact_segments(const Segments& segments);

}  // namespace gpureduce::cpu
