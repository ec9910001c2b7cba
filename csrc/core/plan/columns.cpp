#include "columns.h"

#include <algorithm>

#include "propose.h"

namespace gpureduce::columns_kernel {

bool takes(const Request& q) { return q.by_columns && !q.p.kept.empty() && q.p.length > kLoads; }

void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  if (q.vector > 1 && panels_kernel::takes(q)) return;
  const int vector = column_vector(q.vector, q.walk);
  const Variant* const variant = q.variant(Kernel::columns, q.walk, vector, leaf_elements(q.p.length));
  ColumnsPlan plan{};
  plan.elements = variant->loads;
  // With few elements per column, all outputs count as side by side, so that a warp has many columns even if the fastest kept
  // dim is short. Plain sums have thin kernels for these.
  const bool short_columns = q.r.engine != Engine::full && q.p.length <= kLanes;
  const int64_t columns = short_columns ? q.p.outputs : q.p.kept.back().size;
  const int64_t vectors = ceil_div(columns, vector), line = std::max(1, kLine / (vector * q.size));
  const int many = column_batches(vector);
  const auto propose_width = [&](int width) {
    plan.width = width;
    for (int batches = 1; batches <= many; batches += std::max(1, many - 1)) {
      plan.batches = batches;
      const int64_t unit = int64_t{kWarp / width} * (kLoads / plan.elements) * batches;
      const int64_t most = std::min<int64_t>(power_of_two_above(ceil_div(q.leaves, unit)), column_slots(vector) / width);
      const auto tiles = [&](int64_t units) {
        return q.p.outputs / columns * ceil_div(vectors, width) * ceil_div(q.leaves, units * unit);
      };
      for_each_tile_size(most, q.device, tiles, [&](int64_t units) {
        for (int64_t warps : {4, 8})
          if (warps == 4 || units >= 8)
            proposals.add({plan, q.variant(Kernel::columns, q.walk, vector, plan.elements, batches), q.walk, vector,
                           static_cast<int>(std::min(warps, units)), int64_t{width} * vector, units * unit, columns, true});
      });
    }
  };
  const auto width_of = [&](int64_t side) {
    return static_cast<int>(power_of_two_above(std::min({side, vectors, int64_t{kWarp}})));
  };
  propose_width(width_of(line));
  if (width_of(2 * line) > width_of(line)) propose_width(width_of(2 * line));
}

}  // namespace gpureduce::columns_kernel
