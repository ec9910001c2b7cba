#include "plan.h"

#include <algorithm>

#include "../../plan/propose.h"

namespace gpureduce::flat_kernel {

namespace {

// The most bytes, up to a load's, of which rows are whole pieces at aligned addresses.
int row_piece(const Request& q) {
  uint64_t all = reinterpret_cast<uintptr_t>(q.r.input) | kGranule | q.p.length * q.size;
  for (const KeptDim& d : q.p.kept) all |= static_cast<uint64_t>(d.stride) * q.size;
  return static_cast<int>(all & -all);
}

void propose_loads(Proposals& proposals, int vector) {
  const Request& q = proposals.request;
  const int bytes = vector * q.element_bytes;
  const int64_t loads = ceil_div(q.p.length, vector);
  if (loads > int64_t{kWarp} * flat_groups(bytes, vector)) return;
  const Variant* variant = q.variant(Kernel::flat, q.walk, vector);
  if (!variant) return;
  FlatPlan plan{};
  plan.width = static_cast<int>(std::min<int64_t>(kWarp, power_of_two_above(loads)));
  plan.groups = static_cast<int>(power_of_two_above(ceil_div(loads, kWarp)));
  const int in_flight = flat_loads(bytes, vector, variant->walk == Walk::dense, plan.groups > 1);
  const int warp_rows = in_flight / plan.groups * (kWarp / plan.width);
  for (int warps : {4, 8})
    proposals.add(
        {plan, variant, q.walk, vector, warps, int64_t{warps} * warp_rows, power_of_two_above(q.leaves), q.p.outputs});
}

}  // namespace

bool takes(const Request& q) { return !q.by_columns && q.p.length <= kLanes && q.p.outputs < kMaxGrid; }

// In pieces of memory of a word and more, where rows are such; or else in vectors of nested dims, or single elements.
void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  const int piece = row_piece(q);
  const bool in_pieces = q.typed && q.walk == Walk::dense && piece >= std::max(4, q.size);
  const bool in_vectors =
      q.walk == Walk::nested && q.vector > 1 && q.p.length > 8 * q.vector && q.variant(Kernel::flat, q.walk, q.vector);
  if (in_pieces) propose_loads(proposals, piece / q.size);
  else propose_loads(proposals, in_vectors ? q.vector : 1);
}

}  // namespace gpureduce::flat_kernel
