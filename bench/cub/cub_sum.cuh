// What CUB's sums share: which (input, result) dtypes there are, and how each is added. As a user of CUB would write it: the
// workspace is the caller's, allocated once and never inside a timed region; 32-bit counts; a pointer as input, so that CUB can
// load vectors (conversions stand in the operator, not in an iterator).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda/std/functional>

constexpr int kUnknownType = -1, kTooLarge = -2;

struct alignas(8) Complex { float re, im; };

struct Float8 {  // CUDA's own converts only explicitly, which CUB does not do
  uint8_t bits;
  __host__ __device__ operator float() const { return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3))); }
};

// Both arguments become the accumulator first: bf16 and f16 are added in float, int8 and int32 in int64.
template <class Acc>
struct Add {
  template <class A, class B>
  __host__ __device__ Acc operator()(A a, B b) const {
    return static_cast<Acc>(a) + static_cast<Acc>(b);
  }
};
template <>
struct Add<Complex> {
  __host__ __device__ Complex operator()(Complex a, Complex b) const { return {a.re + b.re, a.im + b.im}; }
};

// torch's names of the input's and the result's dtype; the types of the input, the accumulator, the result.
#define BENCH_CUB_SUMS(X)                                            \
  X("float32", "float32", float, float, float)                       \
  X("float64", "float64", double, double, double)                    \
  X("bfloat16", "bfloat16", __nv_bfloat16, float, __nv_bfloat16)     \
  X("float16", "float16", __half, float, __half)                     \
  X("float8_e4m3fn", "float32", Float8, float, float)                \
  X("int8", "int64", int8_t, int64_t, int64_t)                       \
  X("uint8", "int64", uint8_t, int64_t, int64_t)                     \
  X("bool", "int64", uint8_t, int64_t, int64_t)                      \
  X("int32", "int64", int32_t, int64_t, int64_t)                     \
  X("int64", "int64", int64_t, int64_t, int64_t)                     \
  X("complex64", "complex64", Complex, Complex, Complex)             \
  X("float32", "float64", float, double, double)                     \
  X("bfloat16", "float32", __nv_bfloat16, float, float)

// CUB knows what to do with plus<> of numbers, so it gets that wherever nothing is converted.
template <class In, class Acc>
using Operator = std::conditional_t<std::is_same_v<In, Acc> && std::is_arithmetic_v<Acc>, cuda::std::plus<>, Add<Acc>>;

struct Work {
  void* temp;
  size_t& bytes;
  cudaStream_t stream;
};

inline bool is(const char* a, const char* b) { return std::strcmp(a, b) == 0; }
