// Launches of the second kernels, which depend on the accumulator alone. Whoever includes this compiles those that it calls.
#pragma once

#include "launch.cuh"

namespace gpureduce::cuda {

template <class Acc>
cudaError_t join_rows(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  const SegmentPlan& plan = launch.plan;
  const JoinRowArgs<Acc> args{tiles_of(s, plan.tile, plan.tiles, kRowWeight), plan.row_tiles,
                              kept_nest<kMaxRank>(s.reduction.problem), output_of<Acc>(s), partials_of<Acc>(launch)};
  return start_segments(launch.queue.next(), join_segment_rows<Acc>, plan.join_blocks, kJoinWarps * kWarp, args);
}

template <class Acc>
cudaError_t join_columns(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  const SegmentPlan& plan = launch.plan;
  const int64_t tile = int64_t{1} << plan.piece_bits, tiles = ceil_div(s.length, tile);
  const JoinColumnArgs<Acc> args{tiles_of(s, tile, tiles, 0), s.reduction.problem.outputs, plan.piece_bits, output_of<Acc>(s),
                                 partials_of<Acc>(launch)};
  return start_segments(launch.queue.next(), join_segment_columns<Acc>, plan.join_blocks, kJoinWarps * kWarp, args,
                        static_cast<uint32_t>(plan.join_column_tiles));
}

}  // namespace gpureduce::cuda
