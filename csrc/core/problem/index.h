// Sorting entries by index: which entries are added to which output. Pure C++.
#pragma once

#include "../numeric/dtypes.h"

namespace gpureduce {

// An integer of a contiguous array of int64 or int32. It is read once, whatever the compiler makes of the code: another thread
// may write to a caller's array meanwhile, and what is used must be what was checked.
GPUREDUCE_HOST_DEVICE int64_t integer_at(const void* array, bool wide, int64_t i) {
  const auto* const longs = static_cast<const int64_t*>(array);
  const auto* const ints = static_cast<const int32_t*>(array);
#ifdef __CUDA_ARCH__
  int64_t found = wide ? longs[i] : ints[i];
  asm volatile("" : "+l"(found));  // no instruction: from here on the number is in a register
  return found;
#else
  return wide ? __atomic_load_n(longs + i, __ATOMIC_RELAXED) : __atomic_load_n(ints + i, __ATOMIC_RELAXED);
#endif
}

// For each of `count` entries the number of its output, `stride` apart.
struct Index {
  const void* data;
  bool wide;  // int64, otherwise int32
  int64_t stride, count;
  int64_t size;  // of the outputs

  GPUREDUCE_HOST_DEVICE int64_t at(int64_t i) const { return integer_at(data, wide, i * stride); }
  GPUREDUCE_HOST_DEVICE bool has(int64_t output) const { return output >= 0 && output < size; }
};

// A vector of float32, float16 or bfloat16.
struct Floats {
  const void* data = nullptr;
  DType dtype = DType::Float;
  int64_t stride = 0;

  GPUREDUCE_HOST_DEVICE float at(int64_t i) const {
    switch (dtype) {
      case DType::Half: return value(static_cast<const Half*>(data)[i * stride]);
      case DType::BFloat16: return value(static_cast<const BFloat16*>(data)[i * stride]);
      default: return static_cast<const float*>(data)[i * stride];
    }
  }
};

// Each entry's value; if there are weights, the product, rounded once.
struct IndexValues {
  Floats values, weights;

  GPUREDUCE_HOST_DEVICE float at(int64_t i) const {
    const float x = values.at(i);
    return weights.data ? x * weights.at(i) : x;
  }
};

// A stable sort of the entries by index.
struct IndexSort {
  Index index;
  IndexValues values;  // what is sorted; if there are none, the entries' positions are
  bool wide;           // positions and offsets are int64, otherwise int32
  void* sorted;        // float32 or positions, `count` of them
  void* offsets;       // index.size + 1: the entries of output k are sorted[offsets[k]:offsets[k + 1]]
};

}  // namespace gpureduce
