// Elements of any real dtype, converted as they are read or written. The functions are calls, so that a kernel has their code
// once.
#pragma once

#include "../numeric/dtypes.h"

namespace gpureduce::cuda {

template <class A, int V>
struct Numbers {
  A of[V];
};

// V elements, `stride` bytes apart.
template <class A, int V>
__device__ __noinline__ Numbers<A, V> read_any(const char* from, DType dtype, int stride) {
  Numbers<A, V> found{};
  switch (dtype) {
#define GPUREDUCE_READ(name, type, kind, accumulator, wide, family)                   \
  case DType::name:                                                                   \
    if constexpr (Kind::kind != Kind::complex) {                                      \
      if (stride == 0) {                                                              \
        const A x = static_cast<A>(value(*reinterpret_cast<const type*>(from)));      \
        _Pragma("unroll") for (int j = 0; j < V; ++j) found.of[j] = x;                \
      } else {                                                                        \
        _Pragma("unroll") for (int j = 0; j < V; ++j) found.of[j] =                   \
            static_cast<A>(value(*reinterpret_cast<const type*>(from + j * stride))); \
      }                                                                               \
    }                                                                                 \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_READ)
#undef GPUREDUCE_READ
  }
  return found;
}
template <class A>
__device__ __forceinline__ A read_any(const char* from, DType dtype) {
  return read_any<A, 1>(from, dtype, 0).of[0];
}

template <class A>
__device__ __noinline__ void write_any(char* to, DType dtype, A y) {
  switch (dtype) {
#define GPUREDUCE_WRITE(name, type, kind, accumulator, wide, family)                              \
  case DType::name:                                                                               \
    if constexpr (Kind::kind == Kind::floating) *reinterpret_cast<type*>(to) = round_to<type>(y); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_WRITE)
#undef GPUREDUCE_WRITE
  }
}

}  // namespace gpureduce::cuda
