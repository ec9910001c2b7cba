// Elements of any dtype, converted one by one at run time.
#include "../launch.cuh"

namespace gpureduce::cuda {

cudaError_t launch_converted(const Launch& launch) {
  const Reduction& r = launch.reduction;
  return with_accumulator(r.accumulator, [&](auto acc) {
    if constexpr (kIsTwo<decltype(acc)>) {
      return kNoKernel;
    } else {
      using Source = Converted<decltype(acc)>;
      const Source source{{r.input, l2_policy(launch.plan.streams), {r.in, r.map, r.negate, r.conjugate}}};
      return launch_source<Source, decltype(acc)>(launch, source);
    }
  });
}

}  // namespace gpureduce::cuda
