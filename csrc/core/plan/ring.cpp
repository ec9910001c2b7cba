#include "ring.h"

#include <algorithm>
#include <utility>

#include "propose.h"

namespace gpureduce::ring_kernel {

namespace {

int64_t pitch_of(const Request& q) { return (q.p.kept.empty() ? q.p.length : q.p.kept.back().stride) * q.size; }

// A thread reads its row word by word. If rows were an even number of words apart, too many threads would meet in a bank.
bool takes_pitch(const Request& q) { return pitch_of(q) % 8 != 0 && ceil_div(q.p.length * q.size, 4) <= kWholeRowWords; }

void propose_stages(Proposals& proposals, RingPlan plan, int64_t bytes) {
  const Request& q = proposals.request;
  // Rows per stage: several times as many as a warp takes at once, but so few that all warps have work.
  int64_t rows = std::max<int64_t>(kWarp, bytes / std::max<int64_t>(1, plan.pitch) / kWarp * kWarp);
  const int64_t warps = int64_t{kRingBlocks} * kMaxRingWarps * q.device.multiprocessors;
  rows = std::min(rows, std::max<int64_t>(kWarp, ceil_div(q.p.outputs, warps)));
  // Rows may begin anywhere in a line, and the last read may go beyond their end.
  const int64_t stage = (rows - 1) * plan.pitch + q.p.length * q.size + kGranule + kLine;
  plan.stage_bytes = static_cast<int>(ceil_div(stage, kLine) * kLine);
  const Device& d = q.device;
  const int64_t room = std::min<int64_t>(d.shared_bytes, d.processor_shared_bytes / kRingBlocks - d.reserved_shared_bytes);
  const int64_t most = std::min<int64_t>(kMaxRingWarps, room / plan.shared_bytes(1));
  if (most < 1) return;
  const int64_t columns = q.p.kept.empty() ? 1 : q.p.kept.back().size;
  proposals.add(
      {plan, q.variant(Kernel::ring, q.walk, 4 / q.size), q.walk, 4 / q.size, static_cast<int>(most), rows, kLanes, columns});
}

}  // namespace

// Takes rows that bulk copies can load as they lie, with the gaps between them.
bool takes(const Request& q) {
  const bool is_short = q.p.reduced.size() == 1 && q.p.reduced[0].stride == 1 && q.p.length <= kLanes && q.p.outputs < kMaxGrid;
  const bool close = q.p.kept.empty() || 4 * q.p.kept.back().stride <= 5 * q.p.length;
  return q.device.early && !q.by_columns && !drops_signs(q.r.map, q.r.accumulator) && is_short && close && rings_rows(q.size) &&
         takes_pitch(q);
}

void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  RingPlan plan{};
  plan.pitch = static_cast<int>(pitch_of(q));
  for (const auto& [stages, bytes] : {std::pair{1, 4096}, {2, 2048}, {2, 8192}}) {
    plan.stages = stages;
    propose_stages(proposals, plan, bytes);
  }
}

}  // namespace gpureduce::ring_kernel
