// From plans of segments to launches.
#pragma once

#include "segment.h"
#include "segment_columns.cuh"
#include "segment_rows.cuh"

namespace gpureduce::cuda {

template <class... Args>
cudaError_t start_segments(Queue queue, void (*kernel)(Args...), int64_t blocks, int threads, const Args&... args) {
  if (blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  return start_kernel(queue, {static_cast<uint32_t>(blocks)}, threads, 0, kernel, args...);
}

template <class Acc, bool kWeighs>
GatheredRows<Acc, kWeighs> gathered_rows(const Segments& s) {
  const Gather& g = s.gather;
  return {s.stride, g.rows, g.numbers, static_cast<const Number<Acc>*>(g.weights), g.wide, g.by_row, l2_policy()};
}

template <class Source, class Acc>
auto entries_of(const Segments& s) {
  if constexpr (is_converted<Source>) {
    const Gather& g = s.gather;
    return AnyRows<Acc>{s.stride, g.rows,  g.numbers, static_cast<const typename RealOf<Acc>::type*>(g.weights),
                        g.wide,   g.by_row};
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

inline uint64_t policy_of(const SegmentsLaunch& launch) {
  const Reduction& r = launch.segments.reduction;
  return l2_policy(r.problem.outputs * launch.segments.length * info(r.in).size > launch.device.l2_bytes / 4);
}

// The second kernels, which depend on the accumulator alone and are compiled once for each (segment.cu).
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

template <int V, int kSides, class Acc, class Source, class Entries>
cudaError_t launch_segment_columns(const SegmentsLaunch& launch, const Source& source, const Entries& entries) {
  const Segments& s = launch.segments;
  const SegmentPlan& plan = launch.plan;
  if (plan.column_tiles > kMaxGrid || plan.blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  using Args = SegmentColumnArgs<Source, Entries, Acc>;
  const Args args{source,
                  entries,
                  tiles_of(s, plan.tile, plan.tiles, 0),
                  s.reduction.problem.outputs,
                  static_cast<uint32_t>(plan.column_tiles),
                  plan.width_bits,
                  plan.part_bits,
                  plan.run,
                  plan.short_rows,
                  plan.piece_bits,
                  output_of<Acc>(s),
                  partials_of<Acc>(launch)};
  const auto kernel = segment_columns<V, kSides, Args>;
  if (cudaError_t error = start_segments(launch.queue, kernel, plan.blocks * plan.column_tiles, kColumnThreads, args))
    return error;
  return plan.joins ? join_columns<Acc>(launch) : cudaSuccess;
}

template <class In, class Acc>
cudaError_t segments_of(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  const SegmentPlan& plan = launch.plan;
  constexpr int kVector = segment_vector(sizeof(In)), kSides = segment_sides(sizeof(In));
  const auto source = Typed<In>::of(s.reduction.input, policy_of(launch), masks_of(s.reduction));
  if (s.gather.numbers) {
    const auto gather = [&](auto weighs) {
      constexpr int kGathered = gathered_vector(sizeof(In), std::is_integral_v<Acc>);
      const auto rows = gathered_rows<Acc, decltype(weighs)::value>(s);
      if (plan.vector > 1) return launch_segment_columns<kGathered, 1, Acc>(launch, source, rows);
      return launch_segment_columns<1, 1, Acc>(launch, source, rows);
    };
    if constexpr (std::is_floating_point_v<Acc>)
      if (s.gather.weights) return gather(std::true_type{});
    return gather(std::false_type{});
  }
  if (plan.kernel == SegmentKernel::rows) return launch_segment_rows<Typed<In>, Acc>(launch, source);
  const OwnRows own{s.stride};
  if (plan.sides > 1) return launch_segment_columns<1, kSides, Acc>(launch, source, own);
  if (plan.vector > 1) return launch_segment_columns<kVector, 1, Acc>(launch, source, own);
  return launch_segment_columns<1, 1, Acc>(launch, source, own);
}

template <Family family>
cudaError_t segments_of_family(const SegmentsLaunch& launch) {
  switch (launch.segments.reduction.in) {
#define GPUREDUCE_SEGMENTS(name, type, kind, accumulator, wide, kernels)                                                \
  case DType::name:                                                                                                     \
    if constexpr (Family::kernels == family) return segments_of<Compiled<type>, Sum<Accumulator::accumulator>>(launch); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_SEGMENTS)
#undef GPUREDUCE_SEGMENTS
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
