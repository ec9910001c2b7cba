// The index of an output's largest or smallest element, for argmax and argmin: the first one of equal elements. Pure C++: no
// torch, no CUDA.
//
// For example the argmax of 2, NaN, 3, NaN. The places are those of 2 and 3 among all floats, and the highest for NaN; of the
// two highest ones, the first has index 1.
#pragma once

#include "map.h"

namespace gpureduce::indices {

// An element's place in the order of its dtype. NaN has the highest one, also if `smallest` turns the order around; -0.0 and
// 0.0 share one.
template <class T>
GPUREDUCE_HOST_DEVICE int64_t place_of(T x, bool smallest) {
  int64_t place;
  if constexpr (std::is_floating_point_v<T>) {
    if (x != x) return INT64_MAX;
    using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
    const Bits bits = bit_cast<Bits>(x + T(0));  // -0.0 + 0.0 is 0.0
    place = bits < 0 ? bits ^ static_cast<Bits>(~(Bits{1} << (8 * sizeof(T) - 1))) : bits;
  } else {
    place = in_order<Largest<int64_t>>(x).value;
  }
  return smallest ? ~place : place;
}

}  // namespace gpureduce::indices
