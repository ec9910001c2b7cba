// Bit masks that clear or flip signs as elements are loaded, so that one kernel serves several operations and dtypes. Pure C++.
#pragma once

#include "../../problem/geometry.h"

namespace gpureduce::cuda {

// Masks for each pair of 32-bit words: word & keep ^ turn. A load that is predicated off gives `padding`, which the masks turn
// into the operation's padding.
struct Masks { uint32_t keep[2], turn[2], padding[2]; };

// Repeats a number of `bytes` bytes until it fills eight.
inline uint64_t repeated(uint64_t number, int bytes) {
  for (int size = bytes; size < 8; size *= 2) number |= number << 8 * size;
  return number;
}

// The bits of infinity; for complex dtypes, of one part.
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
  const int bytes = in.kind == Kind::complex ? in.size / 2 : in.size;  // of one number: a complex element has two
  const uint64_t sign = repeated(uint64_t{1} << (8 * bytes - 1), bytes);
  const bool leaves_out = r.map == Map::magnitude || r.map == Map::negative_magnitude || (r.map == Map::nonzero && !integer);
  const bool turns = largest && (r.map == Map::negative || r.map == Map::negative_magnitude);
  const uint64_t keep = leaves_out ? ~sign : ~uint64_t{0};
  uint64_t turn = turns ? integer ? ~uint64_t{0} : sign : 0;
  if (largest && is_unsigned(r.in)) turn ^= sign;                  // ordered()
  uint64_t padding = r.map == Map::nonzero || integer ? 0 : sign;  // sums: -0.0, or 0.0 where the mask clears signs
  if (largest && integer) padding = sign ^ turn;                   // the lowest integer, once masked
  else if (largest && leaves_out && !turns) padding = 0;           // the lowest magnitude
  else if (largest) padding = repeated(infinity_of(r.in), bytes) | (turns ? 0 : sign);
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  return {{low(keep), high(keep)}, {low(turn), high(turn)}, {low(padding), high(padding)}};
}

}  // namespace gpureduce::cuda
