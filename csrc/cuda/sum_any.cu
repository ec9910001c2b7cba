// Elements of any dtype, converted one by one at run time.
#include "launch.cuh"

namespace gpureduce::cuda {

template <class Acc>
cudaError_t reduce_converted(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const Any<Acc> source{{r.input, l2_policy(launch.plan), {r.in, r.map, r.negate, r.conjugate}}};
  return launch_width<1, Acc>(launch, source);
}

cudaError_t reduce_any(const Launch& launch) {
  return with_accumulator(launch.reduction.accumulator, [&](auto acc) { return reduce_converted<decltype(acc)>(launch); });
}

}  // namespace gpureduce::cuda
