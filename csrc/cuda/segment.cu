#include "segment/launch.cuh"

namespace gpureduce::cuda {

namespace {

// Elements of any dtype and layout, converted one by one at run time.
template <class Acc>
cudaError_t convert_segments(const SegmentsLaunch& launch) {
  const Reduction& r = launch.segments.reduction;
  const Any<Acc> source{r.input, policy_of(launch), r.in, r.map, r.negate, r.conjugate};
  return launch_segment_rows<Any<Acc>, Acc>(launch, source);
}

}  // namespace

int64_t workspace_of(const Segments& s, int multiprocessors) {
  const bool rows = are_rows(s) || !are_columns(s);
  const SegmentCut cut = rows ? rows_cut(s, multiprocessors) : columns_cut(s, column_tiles(s, vector_of(s)));
  return cut.record_bytes() + cut.partials * size_of(s.reduction.accumulator);
}

cudaError_t run_segments(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  if (are_rows(s) || are_columns(s)) {
    switch (s.reduction.in) {
#define GPUREDUCE_FAMILY(name, type, kind, own, wide, family)           \
  case DType::name:                                                     \
    if constexpr (Family::family != Family::rare && sizeof(type) > 1) { \
      return segments_of_family<Family::family>(launch);                \
    }                                                                   \
    break;
      GPUREDUCE_DTYPES(GPUREDUCE_FAMILY)
#undef GPUREDUCE_FAMILY
    }
    return cudaErrorInvalidValue;
  }
  switch (s.reduction.accumulator) {
    case Accumulator::f32: return convert_segments<float>(launch);
    case Accumulator::f64: return convert_segments<double>(launch);
    case Accumulator::i64: return convert_segments<int64_t>(launch);
    case Accumulator::c64: return convert_segments<Complex<float>>(launch);
    case Accumulator::c128: return convert_segments<Complex<double>>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
