// The index of an output's largest or smallest element, for argmax and argmin: the first one of equal elements. Pure C++: no
// torch, no CUDA.
//
// For example the argmax of 2, NaN, 3, NaN. 2 and 3 have their places among all floats, and each NaN has the highest place. The
// first of the two highest places is at index 1.
#pragma once

#include "map.h"

namespace gpureduce {

// An element whose index is wanted. Planners see its padded size, as they do of a Deviation.
template <class In>
struct alignas(4) Ranked {
  In element;
};

// An element, loaded, and its index.
template <class In>
struct Candidate {
  In element;
  int64_t index;
  bool smallest, wanted;  // wanted: it exists
};

namespace indices {

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

// A place of 32 bits and an index below 2^32 as one number, whose order is theirs; and back.
GPUREDUCE_HOST_DEVICE Largest<int64_t> packed(int32_t place, int64_t index) {
  const uint64_t high = static_cast<uint32_t>(place), low = static_cast<uint32_t>(~index);
  return {static_cast<int64_t>(high << 32 | low)};
}
GPUREDUCE_HOST_DEVICE Indexed unpacked(Largest<int64_t> x) { return {x.value >> 32, static_cast<uint32_t>(~x.value)}; }

// True if kernels are compiled for elements of this dtype. They pack their lanes.
constexpr bool is_compiled(DType in, int64_t length) {
  return info(in).kind == Kind::floating && (info(in).size == 2 || info(in).size == 4) && length < int64_t{1} << 32;
}

}  // namespace indices

template <class Acc, class In>
GPUREDUCE_HOST_DEVICE Acc addend(Candidate<In> x) {
  if (!x.wanted) return padding<Acc>();
  return indices::packed(indices::place_of(value(x.element), x.smallest), x.index);
}

}  // namespace gpureduce
