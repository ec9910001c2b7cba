// The kernels for x86-64 processors with AVX-512 (2017 and later).
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

#define GPUREDUCE_ISA avx512
#define GPUREDUCE_VECTOR_BYTES 64
#include "kernels.inl"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
