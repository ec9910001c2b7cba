// Exact sums of segments: the launches of a plan.
#include "segment.h"

#include "segment_launch.cuh"

namespace gpureduce::cuda {

namespace {

bool is_wide(DType t) { return t == DType::Double; }

SegmentTiles tiles_of(const Segments& s, const ExactSegmentPlan& plan, int64_t tiles, int weight) {
  return {s.offsets, s.wide, s.count, s.length, int64_t{1} << plan.log_tile, tiles, weight, s.result_pitch};
}

template <int kRank>
ExactSegmentArgs<kRank> args_of(const Segments& s, const ExactSegmentPlan& plan, int64_t* slots, const ExactResult& result) {
  const Reduction& r = s.reduction;
  return {{r.input, r.in, r.negate},
          l2_policy(plan.streams),
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
                        Queue queue) {
  const Reduction& r = s.reduction;
  if (plan.compiled) return start_exact_segments(r.in, args_of<kFastRank>(s, plan, slots, result), queue);
  const auto kernel = is_wide(r.in) ? exact_segments_any<exact::WideRange> : exact_segments_any<exact::NarrowRange>;
  return start_warps(queue, kernel, plan.threads, plan.tiles * plan.column_tiles, args_of<kMaxRank>(s, plan, slots, result));
}

}  // namespace

cudaError_t run_exact_segments(const Segments& s, const ExactSegmentPlan& plan, void* workspace, const Device& device,
                               cudaStream_t stream) {
  const Reduction& r = s.reduction;
  const ExactResult result{r.output, nullptr, r.problem.outputs, 1, r.out, false, false};
  int64_t* const slots = plan.slots > 0 ? static_cast<int64_t*>(workspace) : nullptr;
  Queue queue{stream, device.early};
  const auto start_slots = [&](bool rounds) {
    const ExactSegmentSlots args{
        tiles_of(s, plan, plan.slots, 0), r.problem.outputs, plan.slot_column_tiles, rounds, slots, result,
        kept_nest<kMaxRank>(r.problem)};
    const auto kernel = is_wide(r.in) ? exact_segment_slots<exact::WideRange> : exact_segment_slots<exact::NarrowRange>;
    return start_warps(queue, kernel, kExactAnyThreads, plan.slots * args.column_tiles, args);
  };
  if (slots) {
    if (cudaError_t error = start_slots(/*rounds=*/false)) return error;
    queue = queue.next();
  }
  if (cudaError_t error = start_parts(s, plan, slots, result, queue)) return error;
  if (!slots) return cudaSuccess;
  queue = queue.next();
  return start_slots(/*rounds=*/true);
}

}  // namespace gpureduce::cuda
