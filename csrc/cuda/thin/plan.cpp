#include "plan.h"

#include <algorithm>

#include "../../plan/propose.h"

namespace gpureduce::thin_kernel {

// Of rows, those of which a warp's load touches few lines, and those that are too many for the kernels of short rows.
bool takes(const Request& q) {
  if (q.p.length > kLanes) return false;
  return q.by_columns || q.p.outputs >= kMaxGrid ||
         (q.p.reduced.size() == 1 && q.p.length * q.size * q.p.reduced[0].stride <= kLine);
}

void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  ThinPlan plan{static_cast<int>(power_of_two_above(std::max<int64_t>(2, q.p.length)))};
  const int widest = q.by_columns && (q.p.length <= kLoads || wholes_columns(q.vector)) ? q.vector : 1;
  for (int vector : {1, widest}) {
    const int64_t runs = q.p.length > kLoads ? 1 : thin_runs(vector, plan.elements);
    for (int warps : {4, 8})
      proposals.add({plan, q.walk, vector, warps, warps * runs * kWarp * vector, power_of_two_above(q.leaves), q.p.outputs});
    if (widest == 1) break;
  }
}

}  // namespace gpureduce::thin_kernel
