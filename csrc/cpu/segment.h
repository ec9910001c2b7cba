// Sums of segments on the CPU.
#pragma once

#include "../problem/segment.h"

namespace gpureduce::cpu {

// Sums all segments on torch's intra-op threads. There are elements, and the offsets have been checked.
void run(const Segments& segments);

}  // namespace gpureduce::cpu
