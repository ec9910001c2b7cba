#include "plan.h"

#include <algorithm>

#include "../../plan/propose.h"

namespace gpureduce::rows_kernel {

namespace {
constexpr int kWarps = 4;  // a block
}

// Whatever no other kernel takes.
bool takes(const Request& q) { return !q.by_columns; }

void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  if (!proposals.plans.empty()) return;
  const int unit_leaves = row_unit(1, kDepth, size_of(q.r.accumulator));  // it converts at run time
  const int64_t row_units = ceil_div(q.leaves, unit_leaves), row_slots = power_of_two_above(row_units);
  int64_t units = kWarps;
  while (units < kWarp * kWarps && units * kMaxJoin < row_units) units *= 2;  // one thread a unit joins them
  const int64_t rows = row_slots <= units ? units / row_slots : 1;
  proposals.add({RowsPlan{}, q.walk, 1, kWarps, rows, std::min(row_slots, units) * unit_leaves, rows});
}

}  // namespace gpureduce::rows_kernel
