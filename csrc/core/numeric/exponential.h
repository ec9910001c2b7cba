// Exponentials and logarithms, one source for CPU and GPU, so that they have the same bits everywhere. Every operation here,
// and each explicit fused multiply-add, is rounded once. Results are within 1 unit in the last place. The methods and
// coefficients come from fdlibm (double) and Cephes (float).
#pragma once

#include <cmath>

#include "dtypes.h"

namespace gpureduce {

GPUREDUCE_HOST_DEVICE float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// e^x for x from -87 to 0, where e^x is a normal number. Multiplying by 2^n adds n to the exponent bits.
GPUREDUCE_HOST_DEVICE float exponential_in_range(float x) {
  constexpr float kRound = 0x1.8p+23f;  // adding and subtracting it rounds to an integer
  const float shifted = fused(x, 0x1.715476p+0f, kRound), n = shifted - kRound;
  const float r = fused(n, 0x1.05c610p-29f, fused(n, -0x1.62e430p-1f, x));  // x - n * log(2), whose low part is negative
  float p = fused(1.9875691500e-4f, r, 1.3981999507e-3f);
  p = fused(p, r, 8.3334519073e-3f);
  p = fused(p, r, 4.1665795894e-2f);
  p = fused(p, r, 1.6666665459e-1f);
  p = fused(p, r, 5.0000001201e-1f);
  const float y = fused(p, r * r, r) + 1.0f;
  return bit_cast<float>(bit_cast<uint32_t>(y) + (bit_cast<uint32_t>(shifted) << 23));
}

// The same for x from -708 to 0.
GPUREDUCE_HOST_DEVICE double exponential_in_range(double x) {
  constexpr double kRound = 0x1.8p+52;
  const double shifted = x * 0x1.71547652b82fep+0 + kRound, n = shifted - kRound;
  const double high = x - n * 0x1.62e42feep-1, low = n * 0x1.a39ef35793c76p-33, r = high - low, t = r * r;
  const double c =
      r - t * (1.66666666666666019037e-01 +
               t * (-2.77777777770155933842e-03 +
                    t * (6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
  const double y = 1.0 - ((low - (r * c) / (2.0 - c)) - high);
  return bit_cast<double>(bit_cast<uint64_t>(y) + (bit_cast<uint64_t>(shifted) << 52));
}

// e^x for x <= 0. Where e^x would be subnormal, x is clamped.
GPUREDUCE_HOST_DEVICE float exponential(float x) {
#ifdef __CUDA_ARCH__
  return exponential_in_range(fmaxf(x, -87.0f));
#else
  return exponential_in_range(x < -87.0f ? -87.0f : x);
#endif
}
GPUREDUCE_HOST_DEVICE double exponential(double x) { return exponential_in_range(x < -708.0 ? -708.0 : x); }

// e^x for x <= 0, or 0 where e^x would be subnormal. The result for NaN is arbitrary.
template <class A>
GPUREDUCE_HOST_DEVICE A exponential_or_zero(A x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(A) == 4) {  // in assembly, because the compiler would branch around the polynomial
    float y;
    asm("{\n .reg .pred p;\n setp.lt.f32 p, %1, 0fC2AE0000;\n selp.f32 %0, 0f00000000, %2, p;\n}"
        : "=f"(y)
        : "f"(x), "f"(exponential_in_range(x)));
    return y;
  }
#endif
  return x < A(sizeof(A) == 4 ? -87 : -708) ? A(0) : exponential_in_range(x);
}

// e^x for all x not far above 0. exponential() has no subnormal results, so below kLow this squares e^(x / 2).
template <class A>
GPUREDUCE_HOST_DEVICE A whole_exponential(A x) {
  constexpr A kLow = sizeof(A) == 4 ? -80 : -700;
#ifdef __CUDA_ARCH__
  if (x != x) return x;
  if (x >= kLow) return exponential(x);
  const A root = exponential(x * A(0.5));
  return x < 4 * kLow ? A(0) : root * root;
#else  // the same without branches, so that loops vectorise
  const A found = exponential(x < kLow ? x * A(0.5) : x), square = x < 4 * kLow ? A(0) : found * found;
  return x != x ? x : x < kLow ? square : found;
#endif
}

// The logarithm of x, which is NaN or at least 1.
GPUREDUCE_HOST_DEVICE double logarithm(double x) {
  const uint64_t bits = bit_cast<uint64_t>(x);
  // x = 2^k * (1 + f), with 1 + f from sqrt(1/2) to sqrt(2).
  const uint64_t up = ((bits & 0xfffffffffffffu) + 0x95f6400000000u) & 0x10000000000000u;
  const int k = static_cast<int>(bits >> 52) - 1023 + static_cast<int>(up >> 52);
  const double f = bit_cast<double>((bits & 0xfffffffffffffu) | (up ^ 0x3ff0000000000000u)) - 1.0;
  const double s = f / (2.0 + f), half = 0.5 * f * f, z = s * s, w = z * z;
  const double odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double even = z * (6.666666666666735130e-01 +
                           w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double found =
      k * 6.93147180369123816490e-01 - ((half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f);
  return x < INFINITY ? found : x;
}

// The larger number, or NaN if either is NaN.
template <class T>
GPUREDUCE_HOST_DEVICE T larger(T a, T b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 4) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
  }
#endif
  return a > b || a != a ? a : b;
}

// The logarithm of a sum of exponentials: `sum` is the sum of e^(x - largest), in which the largest element counts 1.
template <class A>
GPUREDUCE_HOST_DEVICE double logarithm_of_sum(A sum, A largest) {
  const bool finite = largest > -INFINITY && largest < INFINITY;
  return finite ? static_cast<double>(largest) + logarithm(static_cast<double>(sum)) : static_cast<double>(largest);
}

}  // namespace gpureduce
