// The emulator, as its program sees it: memory that kernels may touch, and what they did with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulate {

// How to run.
extern bool descending;  // threads of a block take their turns from the last to the first
extern bool in_step;     // threads of a warp run from access to access together, as they did before Volta
extern bool traced;      // keep every access of block 0, for who adds what
extern int64_t sampled;  // blocks whose accesses are counted, spread over the grid

// Global memory: zeros, with a gap on each side in which an access is an error.
void* allocate(size_t bytes, size_t element, const char* name);

// What the first launch did, then what is wrong with any of them, as members of a JSON object.
std::string report();

// Writes the program's result where Python reads it: nothing else comes there.
void tell(const std::string& text);

// Ends the program with what a kernel must not do.
[[noreturn]] void fault(const std::string& what, uintptr_t place = 0, int line = 0);

}  // namespace emulate
