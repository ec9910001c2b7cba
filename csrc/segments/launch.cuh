// From plans of segments to launches, of elements of any source.
#pragma once

#include "columns.cuh"
#include "rows.cuh"
#include "segments.h"

namespace gpureduce::cuda {

template <class... Args>
cudaError_t start_segments(Queue queue, void (*kernel)(Args...), int64_t blocks, int threads, const Args&... args) {
  if (blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  return start_kernel(queue, {static_cast<uint32_t>(blocks)}, threads, 0, kernel, args...);
}

template <class Source, class Acc>
auto entries_of(const Segments& s) {
  if constexpr (is_converted<Source>) {
    const Gather& g = s.gather;
    return AnyRows<Acc>{s.stride,
                        g.rows,
                        g.numbers,
                        static_cast<const typename RealOf<Acc>::type*>(g.weights),
                        g.wide,
                        g.by_row,
                        static_cast<const typename RealOf<Acc>::type*>(s.reduction.largest)};
  } else {
    return OwnRows{s.stride};
  }
}

inline SegmentTiles tiles_of(const Segments& s, int64_t tile, int64_t tiles, int weight) {
  return {s.offsets, s.wide, s.count, s.length, tile, tiles, weight, s.result_pitch};
}

template <class Acc>
Acc* partials_of(const SegmentsLaunch& launch) {
  return static_cast<Acc*>(launch.workspace);
}

template <class Acc>
SegmentOutput<Acc> output_of(const Segments& s) {
  return {s.reduction.output, s.reduction.out, s.reduction.finish};
}

inline uint64_t policy_of(const SegmentsLaunch& launch) { return l2_policy(launch.plan.streams); }

// The second kernels depend on the accumulator alone. Each is compiled once: with PTX (segments.cu) if the first kernels read
// any dtype, and without (native/joins.cu) if they are compiled for a dtype.
template <class Acc>
cudaError_t join_rows(const SegmentsLaunch& launch);
template <class Acc>
cudaError_t join_columns(const SegmentsLaunch& launch);

template <class Source, class Acc>
cudaError_t launch_segment_rows(const SegmentsLaunch& launch, const Source& source) {
  const Segments& s = launch.segments;
  const SegmentPlan& plan = launch.plan;
  const SegmentRowArgs<Source, Acc> args{source,
                                         entries_of<Source, Acc>(s),
                                         tiles_of(s, plan.tile, plan.tiles, kRowWeight),
                                         plan.row_tiles,
                                         kept_nest<Source::kRank>(s.reduction.problem),
                                         output_of<Acc>(s),
                                         partials_of<Acc>(launch)};
  if (cudaError_t error = start_segments(launch.queue, segment_rows<Source, Acc>, plan.blocks, kWarp, args)) return error;
  return plan.joins ? join_rows<Acc>(launch) : cudaSuccess;
}

}  // namespace gpureduce::cuda
