#include "plan.h"

#include <algorithm>

#include "../../plan/propose.h"

namespace gpureduce::thin_kernel {

// Of rows, those that are too many for the kernels of short rows.
bool takes(const Request& q) {
  const int most = q.lean && q.typed ? kLoads : kLanes;
  return q.p.length <= most && (q.by_columns || q.p.outputs >= kMaxGrid);
}

void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  const int fewest = q.lean ? kLoads : 2;
  const int elements = static_cast<int>(power_of_two_above(std::max<int64_t>(fewest, q.p.length)));
  const int widest = q.by_columns && (q.p.length <= kLoads || wholes_columns(q.vector)) ? q.vector : 1;
  const auto propose_runs = [&](int vector, int runs) {
    for (int warps : {4, 8})
      proposals.add({ThinPlan{elements, runs}, q.walk, vector, warps, int64_t{warps} * runs * kWarp * vector,
                     power_of_two_above(q.leaves), q.p.outputs});
  };
  propose_runs(1, q.lean && q.typed ? lean_thin_runs(1, q.p.length) : 1);
  if (!q.lean && elements <= kLoads && thin_runs(1, elements, q.element_bytes) > 1)
    propose_runs(1, thin_runs(1, elements, q.element_bytes));
  if (widest > 1) propose_runs(widest, 1);
}

}  // namespace gpureduce::thin_kernel
