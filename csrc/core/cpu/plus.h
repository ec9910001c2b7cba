// The + of accumulators. Integers wrap modulo 2^64, since overflow of their own + is undefined.
#pragma once

#include "../numeric/dtypes.h"

namespace gpureduce::cpu {

inline int64_t plus(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
template <class Acc>
Acc plus(Acc a, Acc b) {
  return a + b;
}

}  // namespace gpureduce::cpu
