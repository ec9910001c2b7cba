// Threads for the CPU backend: torch's intra-op threads.
#include "../cpu/threads.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include "explain.h"

namespace gpureduce::cpu {

namespace {

int count() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

void parallel(int64_t begin, int64_t end, int64_t grain, Part part, const void* context) {
  if (Explanation* const explained = explanation()) return explained->say_parts(end - begin, grain);
  at::parallel_for(begin, end, grain, [&](int64_t from, int64_t to) { part(context, from, to); });
}

[[maybe_unused]] const bool used = (use({count, at::get_cpu_capability, parallel}), true);

}  // namespace

}  // namespace gpureduce::cpu
