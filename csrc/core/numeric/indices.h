// The index of an output's largest or smallest element, for argmax and argmin: the first one of equal elements. Pure C++: no
// torch, no CUDA.
//
// For example the argmax of 2, NaN, 3, NaN. The places are those of 2 and 3 among all floats, and the highest for NaN; of the
// two highest ones, the first has index 1.
#pragma once

#include "map.h"

namespace gpureduce::indices {

// The type of places of elements with a value of type T.
template <class T>
using Place = std::conditional_t<sizeof(T) <= 4, int32_t, int64_t>;

// The place of an element in the order of its dtype. NaN has the highest one, also if `smallest` turns the order around; -0.0
// and 0.0 share one.
template <class T>
GPUREDUCE_HOST_DEVICE Place<T> place_of(T x, bool smallest) {
  using P = Place<T>;
  constexpr P kHighest = static_cast<P>(~lowest<P>());
  if constexpr (std::is_floating_point_v<T>) {
    const P bits = bit_cast<P>(x + T(0));  // -0.0 + 0.0 is 0.0
    const P place = bits < 0 ? bits ^ kHighest : bits;
    return x != x ? kHighest : smallest ? ~place : place;
  } else {
    const P place = static_cast<P>(in_order<Largest<int64_t>>(x).value);
    return smallest ? ~place : place;
  }
}

}  // namespace gpureduce::indices
