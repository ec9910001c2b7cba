#include "thin.h"

#include <algorithm>

#include "propose.h"

namespace gpureduce::thin_kernel {

// Takes columns, and rows that are too many for the kernels of short rows.
bool takes(const Request& q) { return q.p.length <= kLanes && (q.by_columns || q.p.outputs >= kMaxGrid); }

void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  const int elements = static_cast<int>(power_of_two_above(std::max<int64_t>(2, q.p.length)));
  const auto propose_runs = [&](int vector, int runs) {
    const Variant* variant = q.variant(Kernel::thin, q.walk, vector, elements, runs);
    for (int warps : {4, 8})
      proposals.add({ThinPlan{elements, runs}, variant, q.walk, vector, warps, int64_t{warps} * runs * kWarp * vector,
                     power_of_two_above(q.leaves), q.p.outputs});
  };
  const bool vectors = q.by_columns && q.vector > 1;
  if (vectors) propose_runs(q.vector, 1);
  if (vectors && q.r.addends != Addends::values) return;  // pairs in vectors only: single ones take two loads each
  propose_runs(1, 1);
  const int runs = thin_runs(1, elements, q.element_bytes);
  if (elements <= kLoads && runs > 1) propose_runs(1, runs);
}

}  // namespace gpureduce::thin_kernel
