// Sums on the CPU in the contract's order: the executable specification, as fast as memory allows.
#pragma once

#include <string>

#include "../api.h"
#include "../problem/geometry.h"

namespace gpureduce::cpu {

// Computes `r`, whose pointers are in host memory, on torch's intra-op threads. `length` and `outputs` are at least 1. Returns
// false and writes nothing if no kernel takes its map, accumulator and dtype.
GPUREDUCE_API bool run(const Reduction& r);

// Describes what `run` would do with `r`.
GPUREDUCE_API std::string explain(const Reduction& r);

}  // namespace gpureduce::cpu
