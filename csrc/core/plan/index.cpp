#include "index.h"

namespace gpureduce::cuda {

IndexPlan plan_index(const Index& index) {
  IndexPlan plan{};
  plan.entries.x = static_cast<uint32_t>(ceil_div(index.count, int64_t{kIndexThreads} * kIndexAtOnce));
  plan.offsets.x = static_cast<uint32_t>(ceil_div(index.size + 1, kIndexOutputs));
  while (plan.bits < 32 && (index.size - 1) >> plan.bits) ++plan.bits;
  return plan;
}

std::string IndexPlan::str(const Index& index) const {
  const auto launch = [](const char* kernel, const Grid& grid, const std::string& what) {
    return std::string("kernel ") + kernel + ": " + what + "\nblock: " + std::to_string(kIndexThreads) + " threads; grid " +
           std::to_string(grid.x);
  };
  return launch("prepare", entries, std::to_string(kIndexAtOnce) + " entries per thread") + "\nCUB's radix sort of " +
         std::to_string(index.count) + " pairs of 32 bits by " + std::to_string(bits) + (bits == 1 ? " bit\n" : " bits\n") +
         launch("write_offsets", offsets, std::to_string(kIndexOutputs) + " outputs per block");
}

}  // namespace gpureduce::cuda
