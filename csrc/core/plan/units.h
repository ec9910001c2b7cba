// Which .cu file holds the kernels of a map, an accumulator and a dtype. Pure C++.
//
// A unit is a file of one line, cuda/compiled/<unit>.cu; in the folder native if it is compiled without PTX. Similar kernels
// share a unit, since they compress well together. No unit takes much longer to compile than the others.
#pragma once

#include "../problem/geometry.h"

namespace gpureduce {

#define GPUREDUCE_UNITS(X) \
  X(floats) X(halves) X(bytes) X(integers) X(rare) X(powers) X(counts) X(float_extrema) X(integer_extrema) X(products)

enum class Unit : uint8_t {
  none,
#define GPUREDUCE_UNIT(name) name,
  GPUREDUCE_UNITS(GPUREDUCE_UNIT)
#undef GPUREDUCE_UNIT
};

// True if the library has PTX of a unit, for GPUs that its machine code does not fit. On these, elements of all other units are
// converted at run time. (setup.py compiles the folder native without PTX.)
constexpr bool has_ptx(Unit unit) { return unit == Unit::floats || unit == Unit::halves; }

// The map whose kernels take a reduction. With masks (masks.h), the kernels of values also take negatives and magnitudes, but
// not sums of complex magnitudes.
constexpr Map masked_map(Map map, Accumulator to, const DTypeInfo& in) {
  const bool masked = map == Map::negative || map == Map::magnitude || map == Map::negative_magnitude;
  const bool summed = in.kind == Kind::complex && to != largest_of(in);
  return masked && !summed ? Map::value : map;
}
inline Map kernel_map(const Reduction& r) { return masked_map(r.map, r.accumulator, info(r.in)); }

constexpr Unit unit_of(Map map, Accumulator to, DType dtype) {
  const DTypeInfo& in = info(dtype);
  if (!is_compiled(map, to, dtype) || masked_map(map, to, in) != map) return Unit::none;
  switch (to) {
    case Accumulator::largest_i64: return Unit::integer_extrema;
    case Accumulator::largest_f32:
    case Accumulator::largest_f64: return Unit::float_extrema;
    case Accumulator::product_f32:
    case Accumulator::product_f64:
    case Accumulator::product_i64: return Unit::products;
    default: break;
  }
  if (map == Map::nonzero) return Unit::counts;
  if (map != Map::value) return Unit::powers;
  if (!is_plain_sum(map, to, in)) return Unit::rare;
  switch (in.family) {
    case Family::single: return Unit::floats;
    case Family::half: return Unit::halves;
    case Family::byte: return Unit::bytes;
    default: return Unit::integers;
  }
}

}  // namespace gpureduce
