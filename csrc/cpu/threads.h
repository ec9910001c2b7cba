// What torch provides to the CPU backend (torch/threads.cpp): threads, and the instruction sets that they may use.
#pragma once

#include <cstdint>
#include <string>

namespace gpureduce::cpu {

// The threads that a call may use: 1 within a task of another call.
int thread_count();

// AVX512, AVX2 or another name: the highest instruction set to use (ATEN_CPU_CAPABILITY).
std::string capability();

// Calls task(context, from, to) for parts of [begin, end) on all threads: at most one part for each `grain` indices.
void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*task)(const void*, int64_t, int64_t), const void* context);

// The same with a function object.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  const auto task = [](const void* context, int64_t from, int64_t to) { (*static_cast<const F*>(context))(from, to); };
  parallel_for(begin, end, grain, task, &f);
}

}  // namespace gpureduce::cpu
