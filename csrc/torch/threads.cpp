// Threads for the CPU backend: torch's intra-op threads.
#include "../cpu/threads.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

namespace gpureduce::cpu {

int thread_count() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

std::string capability() { return at::get_cpu_capability(); }

void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*task)(const void*, int64_t, int64_t), const void* context) {
  at::parallel_for(begin, end, grain, [&](int64_t from, int64_t to) { task(context, from, to); });
}

}  // namespace gpureduce::cpu
