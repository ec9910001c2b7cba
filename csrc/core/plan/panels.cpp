#include "panels.h"

#include <algorithm>

#include "propose.h"

namespace gpureduce::panels_kernel {

namespace {

constexpr int kNarrowest = 8;  // threads side by side that read a whole line

// Columns read in one way, `width` threads side by side.
struct Panels {
  const Request& q;
  Walk walk;
  int vector, width;
  const Variant* variant;
  int elements = variant->loads;
  int sum_bytes = vector * q.lane_bytes;  // of a vector of lane sums
  int64_t columns = q.p.kept.back().size;
  int64_t unit_leaves = int64_t{kWarp / width} * (kLoads / elements);

  // Columns per tile. Shifted tiles have vector - 1 fewer, so that their vectors hold them wherever they begin. Spread tiles
  // are equally wide.
  int64_t reach() const {
    const int64_t side = int64_t{width} * vector;
    if (walk == Walk::shifted) return side - (vector - 1);
    return walk == Walk::spread ? ceil_div(columns, ceil_div(columns, side)) : side;
  }
  int64_t tiles(int64_t units) const {
    return q.p.outputs / columns * ceil_div(columns, reach()) * ceil_div(q.leaves, units * unit_leaves);
  }

  // One row of lane sums per unit; for integers, which a warp adds up, one per warp.
  PanelsPlan shape(int64_t units, int warps) const {
    const int rows = q.order_free ? warps : static_cast<int>(units);
    const int parts = std::clamp(warps * kWarp / (width * vector), std::max(1, rows >> kLogPanelRows), kWarp);
    return {width, elements, static_cast<int>(units), rows, std::min(parts, rows)};
  }
  int64_t most_units(int warps) const {
    int64_t units = power_of_two_above(std::min(kMaxPanelLeaves / unit_leaves, ceil_div(q.leaves, unit_leaves)));
    while (units > warps && shape(units, warps).rows * width * sum_bytes > kPanelBytes) units /= 2;
    return units;
  }

  void propose(Proposals& proposals) const {
    for (int most : {4, 8}) {
      for_each_tile_size(
          most_units(most), q.device, [&](int64_t units) { return tiles(units); },
          [&](int64_t units) {
            const int warps = static_cast<int>(std::min<int64_t>(most, units));
            const int64_t splits = ceil_div(q.leaves, units * unit_leaves);
            if (splits > kMaxGridDepth || (most == 8 && units < 8)) return;
            // Neighbouring columns have neighbouring partial sums. But if there are few columns, the partial sums of one column
            // are neighbours, as the join reads them.
            const bool by_column = 2 * q.p.outputs > splits;
            proposals.add(
                {shape(units, warps), variant, walk, vector, warps, reach(), units * unit_leaves, columns, by_column});
          });
    }
  }
};

// Columns read in one way, in the narrowest tiles that are proposed.
Panels narrowest(const Request& q, Walk walk, int vector) {
  const int before = walk == Walk::shifted ? vector - 1 : 0;
  const int64_t vectors = ceil_div(q.p.kept.back().size + before, vector);
  const int width = static_cast<int>(std::min<int64_t>(kNarrowest, power_of_two_above(vectors)));
  return {q, walk, vector, width, q.variant(Kernel::panels, walk, vector, leaf_elements(q.p.length))};
}

}  // namespace

// Takes columns in vectors with one stride from row to row, if a grid has room for their rows and batches.
bool takes(const Request& q) {
  const bool in_vectors = q.vector > 1 || q.odd != q.walk;
  if (!q.by_columns || !in_vectors || q.walk == Walk::nested || q.p.kept.empty() || q.p.length <= kLoads) return false;
  const int64_t columns = q.p.kept.back().size;
  const Panels of = q.vector > 1 ? narrowest(q, q.walk, q.vector) : narrowest(q, q.odd, q.odd_vector());
  return columns <= kMaxGrid / 2 && q.p.outputs / columns <= kMaxGridDepth &&
         ceil_div(q.leaves, of.most_units(kMaxColumnWarps) * of.unit_leaves) <= kMaxGridDepth;
}

void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  q.for_each_reading([&](Walk walk, int vector) {
    if (vector == 1) return;
    const Panels first = narrowest(q, walk, vector);
    for (int width = first.width; width <= kWarp; width *= 2) {
      const Panels panels{q, walk, vector, width, first.variant};
      panels.propose(proposals);
      if (panels.columns <= panels.reach()) break;
    }
  });
}

}  // namespace gpureduce::panels_kernel
