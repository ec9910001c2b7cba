// The kernels for x86-64 processors with AVX2 and FMA (2013 and later).
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c,fma")
#endif

#define GPUREDUCE_ISA avx2
#define GPUREDUCE_VECTOR_BYTES 32
#include "kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
