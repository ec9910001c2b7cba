// Where elements and outputs lie: from an index to offsets, through any number of nested strided dims.
#pragma once

#include "../geometry.h"

namespace gpureduce::cuda {

struct Offsets { int64_t in, out; };

// A place in two nested dims that moves on by so many elements, always the same: without a division.
struct Cursor {
  int64_t offset;
  uint32_t inner;
};

struct Stride {
  int64_t offset, wrap;  // what a move adds, and what more where it goes beyond the end of the inner dim
  uint32_t inner, size;  // what it adds to the inner index, and the inner dim's size; 0: this is none

  __device__ __forceinline__ void move(Cursor& c) const {
    c.inner += inner;
    c.offset += offset;
    if (c.inner >= size) {
      c.inner -= size;
      c.offset += wrap;
    }
  }
};

// Nested dims, slowest first. Rank 0 and 1 need no division. A launch carries its nests, so the usual ones are small.
template <int kCapacity>
struct Nest {
  struct Dim {
    int64_t size, in, out;
    uint32_t magic, shift;  // division by `size` of indices below 2^31 (Hacker's Delight, 10-9; as in ATen's IntDivider)

    __device__ __forceinline__ uint32_t divide(uint32_t index) const { return (__umulhi(index, magic) + index) >> shift; }
  };

  int rank = 0;
  bool narrow = true;  // every index is below 2^31; always so up to kFastRank dims (is_typed)
  Dim dims[kCapacity];

  void add(int64_t size, int64_t in, int64_t out) {
    Dim& d = dims[rank++];
    d = {size, in, out, 0, 0};
    while (d.shift < 31 && (int64_t{1} << d.shift) < size) ++d.shift;
    if (size < int64_t{1} << 31)
      d.magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << d.shift) - size)) / size + 1);
  }

  // Moves in two dims, where stride() says so.
  __device__ __forceinline__ Cursor cursor(int64_t index) const {
    const uint32_t i = static_cast<uint32_t>(index), q = dims[1].divide(i), r = i - q * static_cast<uint32_t>(dims[1].size);
    return {q * dims[0].in + r * dims[1].in, r};
  }

  Stride stride(int64_t elements) const {
    if (rank != 2 || !narrow) return {};
    const int64_t size = dims[1].size, q = elements / size, r = elements % size;
    return {q * dims[0].in + r * dims[1].in, dims[0].in - size * dims[1].in, static_cast<uint32_t>(r),
            static_cast<uint32_t>(size)};
  }

  // The same place as at(), if the index in the last dim is known: nothing to divide in up to two dims.
  __device__ __forceinline__ Offsets at(int64_t outer, int64_t last) const {
    if (rank == 1) return {last * dims[0].in, last * dims[0].out};
    if (rank == 2) return {outer * dims[0].in + last * dims[1].in, outer * dims[0].out + last * dims[1].out};
    return at(outer * dims[rank - 1].size + last);
  }

  __device__ __forceinline__ Offsets at(int64_t index) const {
    if constexpr (kCapacity > kFastRank)
      if (rank > 1 && !narrow) return at_wide(index);
    Offsets o{0, 0};
    if (rank == 0) return o;
    if (rank > 1) {
      uint32_t i = static_cast<uint32_t>(index);
#pragma unroll 1
      for (int d = rank - 1; d > 0; --d) {
        const uint32_t q = dims[d].divide(i);
        const int64_t r = i - q * static_cast<uint32_t>(dims[d].size);
        o.in += r * dims[d].in;
        o.out += r * dims[d].out;
        i = q;
      }
      index = i;
    }
    return {o.in + index * dims[0].in, o.out + index * dims[0].out};
  }

 private:
  // 64-bit division is a lot of code: it stands once.
  __device__ __noinline__ Offsets at_wide(int64_t index) const {
    Offsets o{0, 0};
    for (int d = rank - 1; d > 0; --d) {
      const int64_t q = index / dims[d].size, r = index - q * dims[d].size;
      o.in += r * dims[d].in;
      o.out += r * dims[d].out;
      index = q;
    }
    return {o.in + index * dims[0].in, o.out + index * dims[0].out};
  }
};

template <int kCapacity>
Nest<kCapacity> kept_nest(const Problem& p) {
  Nest<kCapacity> n;
  n.narrow = p.outputs < int64_t{1} << 31;
  for (const KeptDim& d : p.kept) n.add(d.size, d.stride, d.out_stride);
  return n;
}

template <int kCapacity>
Nest<kCapacity> reduced_nest(const Problem& p) {
  Nest<kCapacity> n;
  n.narrow = p.length < int64_t{1} << 31;
  for (const ReducedDim& d : p.reduced) n.add(d.size, d.stride, 0);
  return n;
}

}  // namespace gpureduce::cuda
