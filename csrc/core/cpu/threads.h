// What torch provides to the CPU backend (torch/threads.cpp): threads, and the instruction sets that they may use.
#pragma once

#include <cstdint>
#include <string>

#include "../api.h"

namespace gpureduce::cpu {

using Part = void (*)(const void* context, int64_t from, int64_t to);

// Sets what the functions below call. The glue does so when it is loaded.
struct Threads {
  int (*count)();
  std::string (*capability)();
  void (*parallel_for)(int64_t begin, int64_t end, int64_t grain, Part part, const void* context);
};
GPUREDUCE_API void use(const Threads& threads);

// The threads that a call may use: 1 within a task of another call.
int thread_count();

// AVX512, AVX2 or another name: the highest instruction set to use (ATEN_CPU_CAPABILITY).
std::string capability();

// Calls part(context, from, to) for parts of [begin, end) on all threads: at most one part for each `grain` indices.
void parallel_for(int64_t begin, int64_t end, int64_t grain, Part part, const void* context);

// The same with a function object.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  const auto task = [](const void* context, int64_t from, int64_t to) { (*static_cast<const F*>(context))(from, to); };
  parallel_for(begin, end, grain, task, &f);
}

}  // namespace gpureduce::cpu
