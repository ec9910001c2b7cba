#include "expanded.h"

#include "propose.h"

namespace gpureduce::expanded_kernel {

namespace {
constexpr int kWarps = 4;  // per block
}

bool takes(const Request& q) {
  if (q.p.reduced.size() != 1 || q.p.length <= kLoads || q.leaves > kMaxGrid / 2) return false;
  return q.p.reduced.back().stride == 0 && q.p.reduced.back().second == 0;
}

// Replaces all other plans, which would add the element that many times.
void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  proposals.plans.clear();
  proposals.add({ExpandedPlan{}, q.variant(Kernel::expanded, q.walk, 1), q.walk, 1, kWarps, kWarps * kWarp,
                 power_of_two_above(q.leaves), q.p.outputs});
}

}  // namespace gpureduce::expanded_kernel
