// All that kernels are compiled for beside the plain sums: is_compiled() in map.h says what it is. They come in the few
// variants that all operations have. The .cu files that share this header are large because similar kernels are packed well
// together.
#pragma once

#include "launch.cuh"

namespace gpureduce::cuda {

// By masks (masks.h), signs are left out or turned as elements are loaded; so most maps share the kernels of values.
constexpr Map lean_map(Map map, const DTypeInfo& in) {
  const bool masked = map == Map::negative || map == Map::magnitude || map == Map::negative_magnitude;
  return masked && in.kind != Kind::complex ? Map::value : map;
}

template <int kSize> struct BitsOf;
template <> struct BitsOf<1> { using type = uint8_t; };
template <> struct BitsOf<2> { using type = uint16_t; };
template <> struct BitsOf<4> { using type = uint32_t; };
template <> struct BitsOf<8> { using type = uint64_t; };

// Elements as kernels take them: those of a size share a type where they are counted, and so do integers of which the largest
// is wanted.
template <Map map, class Acc, class In>
auto lean_element() {
  if constexpr (map == Map::nonzero) return Mapped<typename BitsOf<sizeof(In)>::type, map>{};
  else if constexpr (std::is_same_v<Acc, Largest<int64_t>>)
    return Ordered<std::make_signed_t<typename BitsOf<sizeof(In)>::type>>{};
  else if constexpr (IsLargest<Acc>::value && !IsComplex<In>::value) return Ordered<In>{};
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
  return cudaErrorInvalidValue;
}

// Into one of some accumulators.
template <Map map, Accumulator... to>
cudaError_t launch_one_of(const Launch& launch) {
  cudaError_t error = cudaErrorInvalidValue;
  ((launch.reduction.accumulator == to && (error = launch_lean<map, to>(launch), true)) || ...);
  return error;
}

}  // namespace gpureduce::cuda
