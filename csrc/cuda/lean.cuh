// All that kernels are compiled for beside the plain sums: is_compiled() in map.h says what it is. They come in the few
// variants that all operations have. The .cu files that share this header are large because similar kernels are packed well
// together.
#pragma once

#include "launch.cuh"

namespace gpureduce::cuda {

// By masks (masks.h), signs are left out or turned as elements are loaded; so most maps share the kernels of values. Sums of
// complex magnitudes do not.
inline Map lean_map(const Reduction& r) {
  const bool masked = r.map == Map::negative || r.map == Map::magnitude || r.map == Map::negative_magnitude;
  const bool complex = info(r.in).kind == Kind::complex && r.accumulator != largest_of(info(r.in));
  return masked && !complex ? Map::value : r.map;
}

// Elements as kernels take them: those of a size share a type where they are counted, and so do integers of which the largest
// is wanted.
template <Map map, class Acc, class In>
auto lean_element() {
  if constexpr (map == Map::nonzero) return Mapped<UnsignedOf<sizeof(In)>, map>{};
  else if constexpr (std::is_same_v<Acc, Largest<int64_t>>) return Ordered<std::make_signed_t<UnsignedOf<sizeof(In)>>>{};
  else if constexpr (IsLargest<Acc>::value) return Ordered<In>{};
  else return Mapped<Compiled<In>, map>{};
}

template <Map map, Accumulator to>
cudaError_t launch_lean(const Launch& launch) {
  switch (launch.reduction.in) {
#define GPUREDUCE_LAUNCH(name, type, kind, own, wide, family)                                     \
  case DType::name:                                                                               \
    if constexpr (is_compiled(map, to, DType::name) && !is_plain_sum(map, to, info(DType::name))) \
      return launch_typed<decltype(lean_element<map, Sum<to>, type>()), Sum<to>>(launch);         \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_LAUNCH)
#undef GPUREDUCE_LAUNCH
  }
  return kNoKernel;
}

// Into one of some accumulators.
template <Map map, Accumulator... to>
cudaError_t launch_one_of(const Launch& launch) {
  cudaError_t error = kNoKernel;
  ((launch.reduction.accumulator == to && (error = launch_lean<map, to>(launch), true)) || ...);
  return error;
}

}  // namespace gpureduce::cuda
