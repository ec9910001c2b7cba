#include "plan.h"

#include <algorithm>

#include "../../plan/propose.h"

namespace gpureduce::dense_kernel {

bool takes(const Request& q) { return !q.by_columns && (!q.typed || q.p.outputs < kMaxGrid); }

namespace {

// Rows read in one way.
struct Rows {
  Proposals& proposals;
  const Request& q = proposals.request;
  Walk walk;
  int vector;
  int elements = elements_of(q, walk);
  int unit_leaves = row_unit(vector, elements, q.element_bytes, walk);
  int64_t row_units = ceil_div(q.leaves, unit_leaves);

  // Rows that blocks of so many take side by side: all, unless that is more than a grid has.
  int64_t side(int64_t rows) const { return q.p.outputs <= rows * kMaxGrid ? q.p.outputs : rows << 30; }

  static int elements_of(const Request& q, Walk walk) {
    const int few = q.p.length <= 2 * kLanes ? 2 : q.p.length <= 4 * kLanes ? 4 : kDepth;
    return few == 4 && dense_walk(walk, q.p, q.typed) == Walk::deep ? kDepth : few;
  }

  // Units of a row that warps are to take, in tiles of so many units: not a rest, and those of a short last chunk together.
  int64_t loaded(int short_units) const {
    if (short_units) return q.p.length / kChunk * kLanes / unit_leaves + short_units;
    const bool has_rest = (walk == Walk::shifted || vector == 1) && row_rest(q.p.length) > 0;
    return std::max<int64_t>(1, row_units - has_rest);
  }

  // Tiles of so many units, a power of two, of blocks that take `rows` rows by as many warps as a row has units there, or a
  // fraction of these.
  void tiles(int64_t units, int rows, int fraction) {
    DensePlan plan{elements, rows, 0};
    const int64_t leaves = units * unit_leaves;
    if (leaves < q.leaves && q.p.outputs > kMaxDenseDepth * kMaxGridDepth) return;  // which no grid has
    const Walk compiled = dense_walk(walk, q.p, q.typed);
    if (reads_short(vector, elements, size_of(q.r.accumulator), compiled))
      plan.short_units = short_units(q.p.length, q.element_bytes, leaves);
    const int64_t most = std::min<int64_t>(dense_warps(walk), std::min(units, loaded(plan.short_units)));
    const int64_t warps = ceil_div(most, fraction) * rows;
    if ((fraction > 1 && most < fraction) || warps > dense_warps(walk) || units * rows > kMaxDenseUnits) return;
    proposals.add({plan, walk, vector, static_cast<int>(warps), rows, leaves, side(rows), false, true});
  }

  void propose() {
    if (row_alone(q.leaves, unit_leaves, walk)) {  // a warp each
      for (int warps : {1, 2, 4, 8})
        proposals.add({DensePlan{elements, 1, 0}, walk, vector, warps, warps, power_of_two_above(q.leaves), side(warps)});
      return;
    }
    const int64_t whole = power_of_two_above(row_units);
    if (whole <= kMaxDenseUnits) {
      for (int fraction : {1, 2, 4}) tiles(whole, 1, fraction);
      if (shares_blocks(vector, elements)) tiles(whole, 2, 1);
    }
    const int64_t most = std::min<int64_t>(kMaxDenseUnits, whole / 2);
    const auto count = [&](int64_t units) { return q.p.outputs * ceil_div(row_units, units); };
    for_each_tile_size(most, q.device, count, [&](int64_t units) {
      for (int fraction : {1, 2}) tiles(units, 1, fraction);
    });
  }
};

}  // namespace

void propose(Proposals& proposals) {
  proposals.request.for_each_reading(
      [&](Walk walk, int vector) { Rows{proposals, proposals.request, walk, vector}.propose(); });
}

}  // namespace gpureduce::dense_kernel
