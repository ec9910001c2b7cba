// Exact sums of segments: how they are cut into tiles, and which kernel takes them.
#include "segment.h"

#include <algorithm>
#include <cstdlib>

#include "segment_launch.cuh"

namespace gpureduce::cuda {

namespace {

constexpr int kWarpsOfEach = 64;                  // warps per multiprocessor that should have a tile
constexpr int64_t kSlotBytes = int64_t{1} << 24;  // of all slots, unless a quarter of the data is more

// The logarithms of a tile's rows: the most for one column, the fewest of these if there are many columns, and the least.
constexpr int kLogTile = 12, kLogManyColumns = 10, kLeastLogTile = 6;

bool is_wide(DType t) { return t == DType::Double; }

struct ExactSegmentPlan {
  int log_width, log_tile;
  int64_t column_tiles, tiles;
  int64_t slots;  // each of one number per column; 0 if no segment is cut
};

int64_t bytes_of_slots(const Segments& s, int64_t slots) {
  const int words = is_wide(s.reduction.in) ? kExactWords<exact::WideRange> : kExactWords<exact::NarrowRange>;
  return slots * s.reduction.problem.outputs * words * static_cast<int64_t>(sizeof(int64_t));
}

// True if the elements of a row lie closer together than rows do.
bool are_columns(const Segments& s) {
  const Problem& p = s.reduction.problem;
  if (p.kept.empty()) return false;
  const int64_t across = std::abs(p.kept.back().stride);
  return across != 0 && (s.stride == 0 || across < std::abs(s.stride));
}

ExactSegmentPlan plan_of(const Segments& s, const Device& device) {
  const int64_t columns = s.reduction.problem.outputs, bytes = columns * s.length * info(s.reduction.in).size;
  ExactSegmentPlan plan{};
  plan.log_width = are_columns(s) ? std::min(5, log2_up(columns)) : 0;
  plan.column_tiles = ceil_div(columns, int64_t{1} << plan.log_width);
  const auto tiles = [&] { return ((s.length + s.count * kExactSegmentWeight) >> plan.log_tile) + 1; };
  const int most = is_wide(s.reduction.in) ? kMostLogTile<double> : kMostLogTile<float>;
  plan.log_tile = std::min(most, std::max(kLogTile + 1 - plan.log_width, kLogManyColumns));
  const int least = std::max(kLeastLogTile, 8 - plan.log_width);
  const auto has_few_warps = [&] { return tiles() * plan.column_tiles < int64_t{kWarpsOfEach} * device.multiprocessors; };
  const auto slots = [&](int log_tile) { return s.length >> log_tile > 0 ? (s.length >> log_tile) + 1 : 0; };
  const auto has_room = [&] { return bytes_of_slots(s, slots(plan.log_tile - 1)) <= std::max(bytes / 4, kSlotBytes); };
  while (plan.log_tile > least && has_few_warps() && has_room()) --plan.log_tile;
  plan.tiles = tiles();
  plan.slots = slots(plan.log_tile);
  return plan;
}

SegmentTiles tiles_of(const Segments& s, const ExactSegmentPlan& plan, int64_t tiles, int weight) {
  return {s.offsets, s.wide, s.count, s.length, int64_t{1} << plan.log_tile, tiles, weight, s.result_pitch};
}

template <int kRank>
ExactSegmentArgs<kRank> args_of(const Segments& s, const ExactSegmentPlan& plan, int64_t* slots, const ExactResult& result,
                                const Device& device) {
  const Reduction& r = s.reduction;
  const bool streams = r.problem.outputs * s.length * info(r.in).size > device.l2_bytes / 4;
  return {{r.input, r.in, r.negate},
          l2_policy(streams),
          static_cast<int8_t>(plan.log_width),
          tiles_of(s, plan, plan.tiles, kExactSegmentWeight),
          r.problem.outputs,
          plan.column_tiles,
          s.stride,
          slots,
          result,
          kept_nest<kRank>(r.problem)};
}

cudaError_t start_parts(const Segments& s, const ExactSegmentPlan& plan, int64_t* slots, const ExactResult& result,
                        const Device& device, Queue queue) {
  const Reduction& r = s.reduction;
  const bool compiled = r.in == DType::Float || r.in == DType::BFloat16 || r.in == DType::Half || r.in == DType::Double;
  if (device.native && compiled && fits_fast_nest(r.problem.kept, r.problem.outputs))
    return start_exact_segments(r.in, args_of<kFastRank>(s, plan, slots, result, device), queue);
  const auto kernel = is_wide(r.in) ? exact_segments_any<exact::WideRange> : exact_segments_any<exact::NarrowRange>;
  return start_warps(queue, kernel, kAnyThreads, plan.tiles * plan.column_tiles,
                     args_of<kMaxRank>(s, plan, slots, result, device));
}

}  // namespace

int64_t exact_segments_workspace(const Segments& s, const Device& device) {
  return bytes_of_slots(s, plan_of(s, device).slots);
}

cudaError_t run_exact_segments(const Segments& s, void* workspace, const Device& device, cudaStream_t stream) {
  const Reduction& r = s.reduction;
  const ExactSegmentPlan plan = plan_of(s, device);
  const ExactResult result{r.output, nullptr, r.problem.outputs, 1, r.out, false, false};
  int64_t* const slots = plan.slots > 0 ? static_cast<int64_t*>(workspace) : nullptr;
  Queue queue{stream, device.early};
  const auto start_slots = [&](bool rounds) {
    const ExactSegmentSlots args{
        tiles_of(s, plan, plan.slots, 0), r.problem.outputs, ceil_div(r.problem.outputs, kWarp), rounds, slots, result,
        kept_nest<kMaxRank>(r.problem)};
    const auto kernel = is_wide(r.in) ? exact_segment_slots<exact::WideRange> : exact_segment_slots<exact::NarrowRange>;
    return start_warps(queue, kernel, kAnyThreads, plan.slots * args.column_tiles, args);
  };
  if (slots) {
    if (cudaError_t error = start_slots(/*rounds=*/false)) return error;
    queue = queue.next();
  }
  if (cudaError_t error = start_parts(s, plan, slots, result, device, queue)) return error;
  if (!slots) return cudaSuccess;
  queue = queue.next();
  return start_slots(/*rounds=*/true);
}

}  // namespace gpureduce::cuda
