// Offsets of elements and outputs: from an index to offsets, through any number of nested strided dims. Kernels and tests share
// this code.
#pragma once

#include <stdexcept>

#include "../order.h"
#include "geometry.h"

#ifdef __CUDACC__
#define GPUREDUCE_UNROLLED _Pragma("unroll")
#define GPUREDUCE_LOOPED _Pragma("unroll 1")
#else
#define GPUREDUCE_UNROLLED
#define GPUREDUCE_LOOPED
#endif

namespace gpureduce {

// An offset into each of two inputs. With one input, an int64_t takes its place.
struct Both { int64_t first, second; };
GPUREDUCE_HOST_DEVICE Both operator+(Both a, Both b) { return {a.first + b.first, a.second + b.second}; }
GPUREDUCE_HOST_DEVICE Both operator*(Both a, int64_t n) { return {a.first * n, a.second * n}; }

// The offsets of an output: `in` to its first element, `out` to its result. In: int64_t or Both.
template <class In>
struct Spot {
  In in;
  int64_t out;
};
using Offsets = Spot<int64_t>;

constexpr int kInnerDims = kFastRank - 1;

// A position in nested dims. A Stride moves it by a fixed number of elements, without a division. It keeps the indices in the
// kInner fastest dims; the slowest dim needs none. Offset: int64_t or Both.
template <int kInner, class Offset = int64_t>
struct Cursor {
  Offset offset;
  uint32_t index[kInner];  // the fastest first
};

template <int kInner, class Offset = int64_t>
struct Stride {
  Offset offset, wrap[kInner];           // added by each move, and when the index of a dim overflows
  uint32_t index[kInner], size[kInner];  // added to the indices by each move, and the dims' sizes

  // The same stride, for up to two dims.
  GPUREDUCE_HOST_DEVICE Stride<1, Offset> in_two() const { return {offset, {wrap[0]}, {index[0]}, {size[0]}}; }

  GPUREDUCE_HOST_DEVICE void move(Cursor<kInner, Offset>& c) const {
    c.offset = c.offset + offset;
    bool carry = false;
    GPUREDUCE_UNROLLED
    for (int d = 0; d < kInner; ++d) {
      c.index[d] += index[d] + carry;
      carry = c.index[d] >= size[d];
      if (carry) {
        c.index[d] -= size[d];
        c.offset = c.offset + wrap[d];
      }
    }
  }
};

// Nested dims, slowest first. Rank 0 and 1 need no division. Nests are kernel arguments, so most have a small kCapacity.
// In: int64_t or Both.
template <int kCapacity, class In = int64_t>
struct Nest {
  struct Dim {
    int64_t size;
    In in;
    int64_t out;
    uint32_t magic, shift;  // divide indices below 2^31 by `size` (Hacker's Delight, 10-9; as in ATen's IntDivider)

    GPUREDUCE_HOST_DEVICE uint32_t divide(uint32_t index) const {
      return (static_cast<uint32_t>(uint64_t{index} * magic >> 32) + index) >> shift;
    }
  };

  int rank = 0;
  bool narrow = true;  // every index is below 2^31; always true for 2 to kFastRank dims (fits_fast_nest)
  Dim dims[kCapacity];

  void add(int64_t size, In in, int64_t out) {
    Dim& d = dims[rank++];
    d = {size, in, out, 0, 0};
    while (d.shift < 31 && (int64_t{1} << d.shift) < size) ++d.shift;
    if (size < int64_t{1} << 31)
      d.magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << d.shift) - size)) / size + 1);
  }

  // moves(): true if a cursor can move in these dims. moves_in_two(): also, there are at most two.
  GPUREDUCE_HOST_DEVICE bool moves() const { return kCapacity <= kFastRank || (narrow && rank <= kFastRank); }
  GPUREDUCE_HOST_DEVICE bool moves_in_two() const { return rank <= 2 && moves(); }

  // kInner: 1 for up to two dims, otherwise kInnerDims.
  template <int kInner>
  GPUREDUCE_HOST_DEVICE Cursor<kInner, In> cursor(int64_t index) const {
    Cursor<kInner, In> c{};
    uint32_t i = static_cast<uint32_t>(index);
    GPUREDUCE_UNROLLED
    for (int d = 0; d < kInner; ++d) {
      const int dim = kInner == 1 ? 1 : rank - 1 - d;
      if (dim < 1 || dim >= rank) continue;
      const uint32_t q = dims[dim].divide(i);
      c.index[d] = i - q * static_cast<uint32_t>(dims[dim].size);
      c.offset = c.offset + dims[dim].in * c.index[d];
      i = q;
    }
    c.offset = c.offset + dims[0].in * i;
    return c;
  }

  template <int kInner>
  Stride<kInner, In> stride(int64_t elements) const {
    Stride<kInner, In> s{};
    if (elements == 0) return s;  // the caller needs none
    for (int d = 0; d < kInner; ++d) {
      const int dim = rank - 1 - d;
      s.size[d] = dim < 1 ? UINT32_MAX : static_cast<uint32_t>(dims[dim].size);
      if (dim < 1) continue;
      s.index[d] = static_cast<uint32_t>(elements % dims[dim].size);
      const In step = dims[dim].in;
      s.offset = s.offset + step * s.index[d];
      s.wrap[d] = dims[dim - 1].in + step * -dims[dim].size;
      elements /= dims[dim].size;
    }
    if (rank > 0) s.offset = s.offset + dims[0].in * elements;
    return s;
  }

  // The first element of a row of the last dim. Up to two dims need no division.
  GPUREDUCE_HOST_DEVICE Spot<In> at_row(int64_t row) const {
    if (rank == 1) return {};
    if (rank == 2) return {dims[0].in * row, row * dims[0].out};
    return at(row * dims[rank - 1].size);
  }

  GPUREDUCE_HOST_DEVICE Spot<In> at(int64_t index) const {
    if constexpr (kCapacity > kFastRank)
      if (rank > 1 && !narrow) return at_wide(index);
    Spot<In> o{};
    if (rank == 0) return o;
    if (rank > 1) {
      uint32_t i = static_cast<uint32_t>(index);
      GPUREDUCE_LOOPED
      for (int d = rank - 1; d > 0; --d) {
        const uint32_t q = dims[d].divide(i);
        const int64_t r = i - q * static_cast<uint32_t>(dims[d].size);
        o.in = o.in + dims[d].in * r;
        o.out += r * dims[d].out;
        i = q;
      }
      index = i;
    }
    return {o.in + dims[0].in * index, o.out + index * dims[0].out};
  }

 private:
  // 64-bit division is a lot of code, so it is compiled once.
  GPUREDUCE_OUT_OF_LINE Spot<In> at_wide(int64_t index) const {
    Spot<In> o{};
    for (int d = rank - 1; d > 0; --d) {
      const int64_t q = index / dims[d].size, r = index - q * dims[d].size;
      o.in = o.in + dims[d].in * r;
      o.out += r * dims[d].out;
      index = q;
    }
    return {o.in + dims[0].in * index, o.out + index * dims[0].out};
  }
};

// True if a nest of kFastRank dims can locate `count` indices. It divides in 32 bits, so indices must be below 2^31, unless
// there is no dim to divide by.
template <class Dim>
bool fits_fast_nest(const DimList<Dim>& dims, int64_t count) {
  return dims.size() <= kFastRank && (dims.size() <= 1 || count < int64_t{1} << 31);
}

// The stride of a dim, for one input or for both.
template <class In, class Dim>
In stride_of(const Dim& d) {
  if constexpr (std::is_same_v<In, Both>) return {d.stride, d.second};
  else return d.stride;
}

template <int kCapacity, class In, class Dim, class Out>
Nest<kCapacity, In> nest_of(const DimList<Dim>& dims, int64_t count, Out out) {
  if (kCapacity <= kFastRank && !fits_fast_nest(dims, count))
    throw std::logic_error("gpureduce: a kernel was chosen that cannot count so far; please report this");
  Nest<kCapacity, In> n;
  n.narrow = count < int64_t{1} << 31;
  for (const Dim& d : dims) n.add(d.size, stride_of<In>(d), out(d));
  return n;
}

template <int kCapacity, class In = int64_t>
Nest<kCapacity, In> kept_nest(const Problem& p) {
  return nest_of<kCapacity, In>(p.kept, p.outputs, [](const KeptDim& d) { return d.out_stride; });
}

template <int kCapacity, class In = int64_t>
Nest<kCapacity, In> reduced_nest(const Problem& p) {
  return nest_of<kCapacity, In>(p.reduced, p.length, [](const ReducedDim&) { return 0; });
}

}  // namespace gpureduce
