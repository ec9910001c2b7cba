#include "plan.h"

#include <algorithm>

#include "../../plan/propose.h"

namespace gpureduce::narrow_kernel {

namespace {
constexpr int kSumBytes = 24 * 1024;  // of lane sums that a block takes
constexpr int kLeaves = 16;           // of a run, at least
}  // namespace

// Columns that are few, with rows that are dense and aligned as pieces of memory. It counts tiles in 32 bits.
bool takes(const Request& q) {
  if (!q.by_columns || !q.typed || q.p.kept.empty() || q.p.reduced.size() != 1 || q.p.length <= kLoads) return false;
  const KeptDim& columns = q.p.kept.back();
  if (columns.stride != 1 || q.p.reduced[0].stride != columns.size) return false;
  if (columns.size * kLeaves * q.lane_bytes > kSumBytes) return false;
  if (q.p.outputs / columns.size * ceil_div(q.leaves, kLeaves) > kMaxGrid) return false;
  if (reinterpret_cast<uintptr_t>(q.r.input) % kGranule != 0) return false;
  return std::all_of(q.p.kept.begin(), q.p.kept.end() - 1, [&](const KeptDim& d) { return d.stride * q.size % kGranule == 0; });
}

void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  const int64_t width = q.p.kept.back().size;
  const int vector = kGranule / q.size;
  int64_t longest = kLeaves;
  while (longest < std::min<int64_t>(kLanes, q.leaves) && 2 * longest * width * q.lane_bytes <= kSumBytes) longest *= 2;
  for (int64_t run = longest; run >= std::max<int64_t>(kLeaves, longest / 4); run /= 2) {
    // A run's vectors in as few rounds as four warps need.
    const int64_t vectors = ceil_div(run * width, vector), rounds = ceil_div(vectors, 4 * kWarp);
    const int warps = static_cast<int>(ceil_div(vectors, rounds * kWarp));
    for (int batches : {1, kMaxBatches})
      if (batches == 1 || run < q.leaves)
        proposals.add({NarrowPlan{batches}, q.walk, vector, warps, width, run * batches, width});
  }
}

}  // namespace gpureduce::narrow_kernel
