#include "joins.cuh"

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

template cudaError_t join_rows<int64_t>(const SegmentsLaunch&);

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
