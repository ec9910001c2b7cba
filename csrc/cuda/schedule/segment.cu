#include "segment_launch.cuh"

namespace gpureduce::cuda {

namespace {

// Elements of any dtype and layout, converted one by one at run time.
template <class Acc>
cudaError_t convert_segments(const SegmentsLaunch& launch) {
  const Reduction& r = launch.segments.reduction;
  const Converted<Acc> source{{r.input, policy_of(launch), {r.in, r.map, r.negate, r.conjugate}}};
  return launch_segment_rows<Converted<Acc>, Acc>(launch, source);
}

}  // namespace

template <class Acc>
cudaError_t join_rows(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  const SegmentPlan& plan = launch.plan;
  const JoinRowArgs<Acc> args{tiles_of(s, plan.tile, plan.tiles, kRowWeight), plan.row_tiles,
                              kept_nest<kMaxRank>(s.reduction.problem), output_of<Acc>(s), partials_of<Acc>(launch)};
  return start_segments(launch.queue.next(), join_segment_rows<Acc>, ceil_div(plan.tiles, kJoinWarps), kJoinWarps * kWarp,
                        args);
}
template cudaError_t join_rows<float>(const SegmentsLaunch&);
template cudaError_t join_rows<double>(const SegmentsLaunch&);
template cudaError_t join_rows<int64_t>(const SegmentsLaunch&);
template cudaError_t join_rows<Largest<float>>(const SegmentsLaunch&);

template <class Acc>
cudaError_t join_columns(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  const int piece_bits = launch.plan.piece_bits;
  const int64_t columns = s.reduction.problem.outputs, column_tiles = ceil_div(columns, kWarp);
  const int64_t tile = int64_t{1} << piece_bits, tiles = ceil_div(s.length, tile);
  const JoinColumnArgs<Acc> args{tiles_of(s, tile, tiles, 0), columns, piece_bits, output_of<Acc>(s), partials_of<Acc>(launch)};
  return start_segments(launch.queue.next(), join_segment_columns<Acc>, ceil_div(tiles, kJoinWarps) * column_tiles,
                        kJoinWarps * kWarp, args, static_cast<uint32_t>(column_tiles));
}
template cudaError_t join_columns<float>(const SegmentsLaunch&);
template cudaError_t join_columns<double>(const SegmentsLaunch&);
template cudaError_t join_columns<int64_t>(const SegmentsLaunch&);
template cudaError_t join_columns<Largest<float>>(const SegmentsLaunch&);

cudaError_t run_segments(const SegmentsLaunch& launch) {
  const Reduction& r = launch.segments.reduction;
  if (launch.plan.kernel != SegmentKernel::converted) {
    if (r.addends == Addends::exponents) return segment_exponents(launch);
    if (r.accumulator == Accumulator::largest_f32) return segment_extrema(launch);
    switch (r.in) {
#define GPUREDUCE_FAMILY(name, type, kind, accumulator, wide, family)                              \
  case DType::name:                                                                                \
    if constexpr (has_segments(Family::family)) return segments_of_family<Family::family>(launch); \
    break;
      GPUREDUCE_DTYPES(GPUREDUCE_FAMILY)
#undef GPUREDUCE_FAMILY
    }
    return cudaErrorInvalidValue;
  }
  switch (r.accumulator) {
    // A maximum of floats is exact in doubles, too.
    case Accumulator::largest_f32:
    case Accumulator::largest_f64: return convert_segments<Largest<double>>(launch);
    case Accumulator::largest_i64: return convert_segments<Largest<int64_t>>(launch);
    case Accumulator::product_f32: return convert_segments<Product<float>>(launch);
    case Accumulator::product_f64: return convert_segments<Product<double>>(launch);
    case Accumulator::product_i64: return convert_segments<Product<int64_t>>(launch);
    case Accumulator::f32:
    case Accumulator::c64: return convert_segments<Complex<float>>(launch);
    case Accumulator::f64:
    case Accumulator::c128: return convert_segments<Complex<double>>(launch);
    case Accumulator::i64: return convert_segments<int64_t>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
