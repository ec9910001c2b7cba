// Sums of segments on the CPU.
#pragma once

#include "../api.h"
#include "../problem/segment.h"

namespace gpureduce::cpu {

// Sums all segments on torch's intra-op threads. The caller has checked the offsets, and that the input is not empty.
GPUREDUCE_API void run(const Segments& segments);

}  // namespace gpureduce::cpu
