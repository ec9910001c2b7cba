// Runs of elements of any real dtype, loaded as numbers.
#pragma once

#include <algorithm>

#include "../numeric/weighted.h"

namespace gpureduce::cpu {

// Loads n elements, `stride` apart, as numbers (factor() in weighted.h).
template <class Number>
using Loader = void (*)(const void* base, int64_t offset, int64_t stride, int64_t n, bool negate, Number* to);

template <class Number, class In>
void load(const void* base, int64_t offset, int64_t stride, int64_t n, bool negate, Number* to) {
  const In* from = static_cast<const In*>(base) + offset;
  if (negate) {
    for (int64_t i = 0; i < n; ++i) to[i] = weighted::negated_factor<Number>(from[i * stride]);
  } else if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = weighted::factor<Number>(from[i]);
  } else if (stride == 0) {
    std::fill(to, to + n, weighted::factor<Number>(*from));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = weighted::factor<Number>(from[i * stride]);
  }
}

template <class Number>
Loader<Number> loader_of(DType dtype) {
  switch (dtype) {
#define GPUREDUCE_LOADER(name, type, kind, accumulator, wide, family)     \
  case DType::name:                                                       \
    if constexpr (Kind::kind != Kind::complex) return load<Number, type>; \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_LOADER)
#undef GPUREDUCE_LOADER
  }
  return nullptr;
}

}  // namespace gpureduce::cpu
