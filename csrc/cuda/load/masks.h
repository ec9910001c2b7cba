// How signs are left out or turned as elements are loaded, so that one kernel serves several operations and dtypes. Pure C++.
#pragma once

#include "../../problem/geometry.h"

namespace gpureduce::cuda {

// What becomes of the words of elements, by twos: bits that are kept, then some that are turned. `padding` becomes padding.
struct Masks { uint32_t keep[2], turn[2], padding[2]; };

// Eight bytes of the same number, of so many bytes.
inline uint64_t repeated(uint64_t number, int bytes) {
  for (int size = bytes; size < 8; size *= 2) number |= number << 8 * size;
  return number;
}

// Infinity, as it lies in memory; of complex numbers that of a part.
inline uint64_t infinity_of(DType t) {
  switch (t) {
    case DType::Half: return 0x7c00;
    case DType::BFloat16: return 0x7f80;
    case DType::ComplexFloat:
    case DType::Float: return 0x7f800000;
    default: return 0x7ff0000000000000;
  }
}

inline Masks masks_of(const Reduction& r) {
  const DTypeInfo& in = info(r.in);
  const bool integer = in.kind == Kind::integer, largest = r.accumulator == largest_of(in);
  const int bytes = in.kind == Kind::complex ? in.size / 2 : in.size;  // of a number
  const uint64_t sign = repeated(uint64_t{1} << (8 * bytes - 1), bytes);
  const bool leaves_out = r.map == Map::magnitude || r.map == Map::negative_magnitude || (r.map == Map::nonzero && !integer);
  const bool turns = largest && (r.map == Map::negative || r.map == Map::negative_magnitude);
  const uint64_t keep = leaves_out ? ~sign : ~uint64_t{0};
  uint64_t turn = turns ? integer ? ~uint64_t{0} : sign : 0;
  if (largest && is_unsigned(r.in)) turn ^= sign;                  // ordered()
  uint64_t padding = r.map == Map::nonzero || integer ? 0 : sign;  // of sums -0.0, or 0.0 where signs are left out
  if (largest && integer) padding = sign ^ turn;                   // the lowest
  else if (largest && leaves_out && !turns) padding = 0;           // as low as magnitudes are
  else if (largest) padding = repeated(infinity_of(r.in), bytes) | (turns ? 0 : sign);
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  return {{low(keep), high(keep)}, {low(turn), high(turn)}, {low(padding), high(padding)}};
}

}  // namespace gpureduce::cuda
