// Elements of any dtype, converted one by one at run time.
#include "launch.cuh"

namespace gpureduce::cuda {

template <class Acc>
cudaError_t reduce_converted(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const Any<Acc> source{r.input, l2_policy(launch.plan), r.in, r.map, r.negate, r.conjugate};
  return launch_width<1, Acc>(launch, source);
}

cudaError_t reduce_any(const Launch& launch) {
  switch (launch.reduction.accumulator) {
    case Accumulator::f32: return reduce_converted<Sum<Accumulator::f32>>(launch);
    case Accumulator::f64: return reduce_converted<Sum<Accumulator::f64>>(launch);
    case Accumulator::i64: return reduce_converted<Sum<Accumulator::i64>>(launch);
    case Accumulator::c64: return reduce_converted<Sum<Accumulator::c64>>(launch);
    case Accumulator::c128: return reduce_converted<Sum<Accumulator::c128>>(launch);
    case Accumulator::largest_f32: return reduce_converted<Sum<Accumulator::largest_f32>>(launch);
    case Accumulator::largest_f64: return reduce_converted<Sum<Accumulator::largest_f64>>(launch);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
