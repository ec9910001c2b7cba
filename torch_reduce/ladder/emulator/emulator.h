// The emulator, as its program sees it: memory that kernels may touch, and what they did with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulate {

// How to run.
extern bool descending;        // threads of a block take their turns from the last to the first
extern bool last_block_first;  // blocks run from the last to the first
extern bool in_step;           // threads of a warp run from access to access together, as they did before Volta
extern bool traced;            // keep every access of block 0, for who adds what
extern int64_t sampled;        // blocks whose accesses are counted, spread over the grid

// Global memory: zeros, with a gap on each side in which an access is an error.
void* allocate(size_t bytes, size_t element, const char* name);

// A whole program runs, its host's side too: each side must keep to its own memory. See host.cpp.
extern bool whole;
void* take(size_t bytes, size_t element, const char* name);   // global memory that holds nothing yet, as cudaMalloc's
size_t room(const void* where);                               // bytes of its array from here to the end; 0 outside of all
void fill(const void* where, size_t bytes);                   // they hold something from now on
std::string empty_elements(const void* where, size_t bytes);  // which of them hold nothing: "x[3] and 7 more of its elements"
bool release(void* where);                                    // frees what `take` gave; false if it gave nothing here
std::vector<std::string> arrays();                            // the names of those that are not freed
void complain(const std::string& text, int line);

// What the first launch did, then what is wrong with any of them, as members of a JSON object.
std::string report();

// Writes the program's result where Python reads it: nothing else comes there.
void tell(const std::string& text);

std::string called(unsigned thread, unsigned block);  // by their numbers in the last launch: "thread 3 of block 0"

// Ends the program with what a kernel must not do.
[[noreturn]] void fault(const std::string& what, uintptr_t place = 0, int line = 0);

}  // namespace emulate
