#include "dense.h"

#include <algorithm>

#include "propose.h"

namespace gpureduce::dense_kernel {

bool takes(const Request& q) { return !q.by_columns && (!q.typed || counts_rows(q.p)); }

namespace {

// Rows read in one way.
struct Rows {
  Proposals& proposals;
  const Request& q = proposals.request;
  Walk walk;
  int vector;
  const Variant* variant = q.variant(Kernel::dense, dense_walk(walk, q.p), vector, std::max(2, leaf_elements(q.p.length)));
  int elements = variant ? variant->loads : kDepth;
  int unit_leaves = row_unit(vector, elements, register_bytes(vector, q.element_bytes, q.r.addends == Addends::values), walk);
  int64_t row_units = ceil_div(q.leaves, unit_leaves);

  // Rows side by side in the grid, if a block takes `rows` of them: all rows, unless the grid has too few blocks along x.
  int64_t side(int64_t rows) const { return q.p.outputs <= rows * kMaxGrid ? q.p.outputs : rows << 30; }

  // Proposes tiles of `units` units, a power of two. A block has as many warps as units, or a fraction of these. A row's rest
  // of a few elements needs no warp.
  void tiles(int64_t units, int fraction) {
    const int64_t leaves = units * unit_leaves;
    if (leaves < q.leaves && q.p.outputs > kMaxDenseDepth * kMaxGridDepth) return;  // more rows than a grid has
    const bool has_rest = (walk == Walk::shifted || vector == 1) && row_rest(q.p.length) > 0;
    const int64_t most =
        std::min({int64_t{dense_warps(walk, vector * q.lane_bytes)}, units, std::max<int64_t>(1, row_units - has_rest)});
    if (most < fraction) return;
    proposals.add({DensePlan{elements}, variant, walk, vector, static_cast<int>(ceil_div(most, fraction)), 1, leaves, side(1),
                   false, true});
  }

  void propose() {
    if (fits_warp(q.leaves, unit_leaves, walk)) {  // one warp per row
      for (int warps : {1, 2, 4, 8})
        proposals.add({DensePlan{elements}, variant, walk, vector, warps, warps, power_of_two_above(q.leaves), side(warps)});
      return;
    }
    const int64_t whole = power_of_two_above(row_units);
    if (whole <= kMaxDenseUnits) {
      for (int fraction : {1, 2, 4}) tiles(whole, fraction);
    }
    const int64_t most = std::min<int64_t>(kMaxDenseUnits, whole / 2);
    const auto count = [&](int64_t units) { return q.p.outputs * ceil_div(row_units, units); };
    for_each_tile_size(most, q.device, count, [&](int64_t units) {
      for (int fraction : {1, 2}) tiles(units, fraction);
    });
  }
};

}  // namespace

void propose(Proposals& proposals) {
  proposals.request.for_each_reading(
      [&](Walk walk, int vector) { Rows{proposals, proposals.request, walk, vector}.propose(); });
}

}  // namespace gpureduce::dense_kernel
