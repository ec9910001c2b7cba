// Rung 40, fixed_point. Chapter 6: where it leads.
//
// threads   A block takes one element a thread, and then the next ones; at its end a thread takes a digit.
// idea      Add integers: a float is an integer times a power of two, and integers lose nothing. A sum is a number of ten
//           digits of 32 bits; an element goes to the digits of its own exponent; only the end rounds, once.
// removes   The order: integers in any order have the same sum, so that atomics may come as they like.
// wrong     Every element takes two or three atomics to shared memory, where a warp's threads queue for the same digits.
// requires  Zeros as digits of the grid, before it starts.
// source    This library: torch_reduce.sum(x, exact=True), docs/exact.md; the number is Kulisch's long accumulator
// faster    no: engine adds in registers, and this rung in shared memory, by atomics that wait for each other.
// command   python -m torch_reduce.ladder run --rungs engine,fixed_point --profile
//
// For example 1e8 + 1 - 1e8 + 1, which is 0 in float32 from left to right. Bit 0 counts 2^-149, so 1 is bit 21 of digit 4.
//             digit 4    digit 5
//    1e8     536870912     48828
//    1         2097152         0
//   -1e8    -536870912    -48828
//    1         2097152         0
//   sum        4194304         0     that is bit 22 of digit 4: 2
#include "../core/numeric/exact.h"
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

// The digits of a sum: 10 for float32, 68 for float64. Integers wrap, so that two digits are enough; an addend has three.
struct Integers { static constexpr int kLowest = 0, kDigits = 3; };
template <class T>
using Range = std::conditional_t<std::is_integral_v<T>, Integers, exact::RangeOf<T>>;
template <class T>
using Digits = exact::FixedPoint<Range<T>>;

__device__ unsigned long long* word(int64_t* digit) { return reinterpret_cast<unsigned long long*>(digit); }

template <class T>
__global__ void fixed_point(const T* x, Digits<T>* total, int64_t n, int elements) {
  __shared__ Digits<T> sum;
  if (threadIdx.x == 0) sum.clear();
  __syncthreads();

  unsigned seen = 0;  // infinities and NaN, which no digit shows
  for (int k = 0; k < elements; ++k) {
    const int64_t i = (int64_t{blockIdx.x} * elements + k) * blockDim.x + threadIdx.x;
    if (i >= n) break;
    const exact::Element a = exact::element_of(x[i]);
    const int bit = a.exponent - Range<T>::kLowest;
    Digits<unsigned> part{};
    part.add(a.magnitude, bit % 32, a.negative);
#pragma unroll
    for (int d = 0; d < 3; ++d)
      if (part.digits[d]) atomicAdd(word(&sum.digits[bit / 32 + d]), static_cast<unsigned long long>(part.digits[d]));
    seen |= a.seen;
  }
  atomicOr(&sum.seen, seen);
  __syncthreads();

  if (threadIdx.x == 0) sum.carry();  // to 32 bits again, so that the grid's digits have room for 2^31 blocks
  __syncthreads();
  for (int d = threadIdx.x; d < Digits<T>::kDigits; d += blockDim.x)
    atomicAdd(word(&total->digits[d]), static_cast<unsigned long long>(sum.digits[d]));
  if (threadIdx.x == 0) atomicOr(&total->seen, sum.seen);
}

template <class T>
__global__ void round_once(Digits<T>* total, T* out) {
  total->carry();
  if constexpr (std::is_integral_v<T>) *out = static_cast<T>(static_cast<uint64_t>(total->digits[1]) << 32 | total->digits[0]);
  else *out = exact::round_leading<T>(exact::leading(*total, 1, false), total->seen);
}

// Differs from the lesson: there is none. The library's own kernels save most of the atomics: while exponents are close to each
// other, a thread adds its elements in a register of 64 bits, a window of the digits.

size_t bytes_of_digits(const Call& call) {
  size_t bytes = 0;
  with_type(call.dtype, [&](auto type) { bytes = sizeof(Digits<typename decltype(type)::type>); });
  return bytes;
}

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    auto* total = static_cast<Digits<T>*>(call.scratch);
    fixed_point<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<const T*>(call.input), total, call.n,
                                                                     call.elements);
    round_once<<<1, 1, 0, stream_of(call)>>>(total, static_cast<T*>(call.output));
  });
}

const Register rung("fixed_point", exactly({16, 1, 2, 4, 8, 32}, run, bytes_of_digits));

}  // namespace

}  // namespace gpureduce::ladder
