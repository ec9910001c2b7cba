// Sums on the CPU, in the contract's order: the executable specification, and as fast as the memory.
#pragma once

#include <string>

#include "../problem/geometry.h"

namespace gpureduce::cpu {

// Computes `r`, whose pointers are the CPU's, on torch's intra-op threads. `length` and `outputs` are at least 1. Returns
// whether there is a kernel for its map, accumulator and dtype; without one it writes nothing.
bool run(const Reduction& r);

// What `run` would do with `r`, as text.
std::string explain(const Reduction& r);

}  // namespace gpureduce::cpu
