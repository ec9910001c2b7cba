// Sums of segments on the CPU.
#pragma once

#include "../segment.h"

namespace gpureduce::cpu {

// Raises an error that names the first offset that is less than the one before, or outside of the dim. Warns of offsets that
// look like lengths.
void check_offsets(const Segments& segments, const char* function);

// Sums all segments on torch's intra-op threads. There are elements, and the offsets have been checked.
void run(const Segments& segments);

}  // namespace gpureduce::cpu
