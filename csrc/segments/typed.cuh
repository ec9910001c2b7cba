// Launches of kernels of segments that are compiled for a dtype. Only the files that compile them include this: where a call of
// segments_of_family() saw its definition, the kernels would be compiled a second time.
#pragma once

#include "launch.cuh"

namespace gpureduce::cuda {

template <class Acc, bool kWeighs>
GatheredRows<Acc, kWeighs> gathered_rows(const Segments& s) {
  const Gather& g = s.gather;
  return {s.stride, g.rows, g.numbers, static_cast<const Number<Acc>*>(g.weights), g.wide, g.by_row, l2_policy()};
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

// Entry i is row i.
template <class Acc, class Source>
cudaError_t launch_own_rows(const SegmentsLaunch& launch, const Source& source) {
  constexpr int kSize = sizeof(typename Source::Element);
  const SegmentPlan& plan = launch.plan;
  if (plan.kernel == SegmentKernel::rows) return launch_segment_rows<Source, Acc>(launch, source);
  const OwnRows own{launch.segments.stride};
  if (plan.sides > 1) return launch_segment_columns<1, segment_sides(kSize), Acc>(launch, source, own);
  if (plan.vector > 1) return launch_segment_columns<segment_vector(kSize), 1, Acc>(launch, source, own);
  return launch_segment_columns<1, 1, Acc>(launch, source, own);
}

template <class In, class Acc>
cudaError_t segments_of(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  const auto source = Typed<In>::of(s.reduction.input, policy_of(launch), masks_of(s.reduction));
  if (!s.gather.numbers) return launch_own_rows<Acc>(launch, source);
  const auto gather = [&](auto weighs) {
    constexpr int kGathered = gathered_vector(sizeof(In), std::is_integral_v<Acc>);
    const auto rows = gathered_rows<Acc, decltype(weighs)::value>(s);
    if (launch.plan.vector > 1) return launch_segment_columns<kGathered, 1, Acc>(launch, source, rows);
    return launch_segment_columns<1, 1, Acc>(launch, source, rows);
  };
  if constexpr (std::is_floating_point_v<Acc>)
    if (s.gather.weights) return gather(std::true_type{});
  return gather(std::false_type{});
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
