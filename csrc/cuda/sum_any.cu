// Elements of any dtype, converted one by one at run time.
#include "launch.cuh"

namespace gpureduce::cuda {

cudaError_t reduce_any(const Launch& launch) {
  const Reduction& r = launch.reduction;
  switch (r.accumulator) {
#define GPUREDUCE_ANY(name)                                                                                                    \
  case Accumulator::name: {                                                                                                    \
    using Acc = Sum<Accumulator::name>;                                                                                        \
    return launch_width<1, Acc>(launch, Any<Acc>{r.input, l2_policy(launch.plan), r.in, r.conversion, r.negate, r.conjugate}); \
  }
    GPUREDUCE_ANY(f32)
    GPUREDUCE_ANY(f64)
    GPUREDUCE_ANY(i64)
    GPUREDUCE_ANY(c64)
    GPUREDUCE_ANY(c128)
#undef GPUREDUCE_ANY
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
