// What a reducing kernel is given. Of a launch's constants those that it needs for its first loads stand first, so that a line
// of the constant cache holds them: lines are missing in a cold cache, and a kernel waits for one after the other.
#pragma once

#include "../finish.h"
#include "../nest.h"
#include "../plan/plan.h"
#include "any.cuh"

namespace gpureduce::cuda {

// Stores V results, `stride` apart; in whole granules where they lie so.
template <class Out, class Acc, int V>
__device__ __forceinline__ void store_as(void* out, int64_t index, int64_t stride, const Acc (&v)[V]) {
  Out* at = static_cast<Out*>(out) + index;
  if constexpr (V > 1) {
    constexpr int kAligned = granule_values<Out>(V) * sizeof(Out);
    if (stride == 1 && reinterpret_cast<uintptr_t>(at) % kAligned == 0) {
      Out results[V];
#pragma unroll
      for (int j = 0; j < V; ++j) results[j] = result<Out>(v[j]);
      return store_granules([&](int g) { return at + g; }, results);
    }
  }
#pragma unroll
  for (int j = 0; j < V; ++j) at[j * stride] = result<Out>(v[j]);
}

// The same in a dtype for which is_direct() holds.
template <class Acc, int V>
__device__ __forceinline__ void store_direct(void* out, int64_t index, int64_t stride, DType t, const Acc (&v)[V]) {
  if constexpr (std::is_same_v<Acc, float>) {
    if (t == DType::BFloat16) return store_as<BFloat16>(out, index, stride, v);
    if (t == DType::Half) return store_as<Half>(out, index, stride, v);
  }
  store_as<Acc>(out, index, stride, v);
}

// The same in any dtype, which is a lot of code.
template <class Acc>
__device__ __noinline__ void store_any(void* out, int64_t index, DType t, Finish finish, int64_t count, Acc v) {
  if (finish == Finish::none) gpureduce::store(out, index, t, v);
  else gpureduce::store(out, index, t, finished(v, finish, count));
}

// Results that kernels of some elements have their own code for, beside those that is_direct() is for: truths of counts, and of
// the larger of two integers those of the same size.
template <class Element>
struct OwnResult {
  using type = void;
};
template <class In>
struct OwnResult<Mapped<In, Map::nonzero>> {
  using type = Boolean;
};
template <class In>
struct OwnResult<Ordered<In>> {
  using type = std::conditional_t<std::is_integral_v<In>, In, void>;
};

template <class Source>
using OwnResultOf = typename OwnResult<typename Source::Element>::type;

template <class Own>
bool is_own(DType t) {
  if constexpr (std::is_void_v<Own>) return false;
  else if constexpr (std::is_same_v<Own, Boolean>) return t == DType::Bool;
  else return t != DType::Bool && info(t).size == sizeof(Own);
}

// Where values go: rounded to the result, or as they are to the partial sums, which the join kernel takes up.
// kAll: there is code for all results, and else for those alone for which is_direct() holds.
template <class Acc, bool kAll, class Own = void>
struct Output {
  static constexpr bool kWantsFirst = false;  // as writers of weighted sums may
  void* to;
  bool partial, as_is;  // partial sums; all that is stored as it is, as most results are, too
  bool direct, own;     // is_direct(), is_own()
  DType dtype;
  Finish finish;
  int64_t count;  // elements of an output

  template <int kRank>
  __device__ __forceinline__ void write(const Nest<kRank>& kept, int64_t output, int64_t part, Acc v) const {
    write_at(partial ? 0 : kept.at(output).out, part, v);
  }
  // `place`: where the result stands. `part`: which partial sum it is.
  __device__ __forceinline__ void write_at(int64_t place, int64_t part, Acc v) const {
    Number<Acc> x[1] = {number(v)};
    if (!as_is) {
      if constexpr (kAll)
        if (!direct) return store_other<1>(place, 0, {v});
      finish_directly(x);
      return store_direct(to, place, 0, dtype, x);
    }
    static_cast<Number<Acc>*>(to)[partial ? part : place] = x[0];
  }
  // Neighbouring outputs, whose results lie `stride` apart from `place` on; so do their partial sums, but side by side.
  template <int V>
  __device__ __forceinline__ void write_neighbours(int64_t place, int64_t stride, int64_t part, const Acc (&v)[V]) const {
    if (partial) return store_as<Acc>(to, part, 1, v);
    if constexpr (kAll)
      if (!direct) return store_other<V>(place, stride, v);
    Number<Acc> numbers[V];
#pragma unroll
    for (int j = 0; j < V; ++j) numbers[j] = number(v[j]);
    finish_directly(numbers);
    store_direct(to, place, stride, dtype, numbers);
  }

 private:
  // Of those that is_direct() is for; and all others.
  template <int V>
  __device__ __forceinline__ void finish_directly(Number<Acc> (&x)[V]) const {
    if constexpr (!std::is_integral_v<Acc>) {  // whose quotients are not direct
      if (finish != Finish::none) {
#pragma unroll
        for (int j = 0; j < V; ++j) x[j] = finished_directly(x[j]);
      }
    }
  }
  template <int V>
  __device__ __forceinline__ void store_other(int64_t place, int64_t stride, const Acc (&v)[V]) const {
    if constexpr (!std::is_void_v<Own>)
      if (own) return store_own(place, stride, v);
#pragma unroll
    for (int j = 0; j < V; ++j) store_any(to, place + j * stride, dtype, finish, count, v[j]);
  }
  template <int V>
  __device__ __forceinline__ void store_own(int64_t place, int64_t stride, const Acc (&v)[V]) const {
    Own results[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (std::is_same_v<Own, Boolean>) {
        results[j] = {static_cast<uint8_t>(finish == Finish::all ? v[j] == count : v[j] != 0)};
      } else {
        using Unsigned = std::make_unsigned_t<Own>;
        const auto bits = static_cast<Unsigned>(finished(v[j], finish, count).value);
        results[j] = static_cast<Own>(is_unsigned(dtype) ? ordered(bits) : bits);
      }
    }
    store_as<Own>(to, place, stride, results);
  }
  template <class Number>
  __device__ __forceinline__ Number finished_directly(Number x) const {
    if constexpr (IsLargest<Acc>::value) {
      return opposite(Acc{x}).value;
    } else if constexpr (IsProduct<Acc>::value || IsLogSum<Acc>::value) {
      return x;
    } else {
      if constexpr (kAll && std::is_floating_point_v<Number>) {
        if (finish == Finish::square_root) return square_root(x);
        if (finish == Finish::cube_root) return cube_root(x);
      }
      return quotient(x, count);
    }
  }
};

// Where those of a reduction go.
template <class Acc, bool kAll, class Own = void, class Reduction>
Output<Acc, kAll, Own> output_of(const Reduction& r, Acc* partials) {
  const bool direct = is_direct(r), as_is = direct && r.finish == Finish::none && info(r.out).size == sizeof(Acc);
  void* const to = partials ? partials : r.output;
  return {to, partials != nullptr, partials || as_is, direct, is_own<Own>(r.out), r.out, r.finish, r.problem.length};
}

// Where the results of a kernel that reads from a source go.
template <class Source, class Acc>
using OutputOf = Output<Acc, is_lean<Source>, OwnResultOf<Source>>;

// The tiles that a block takes: the one at its place in the grid, which is mostly all, then those that are whole grids on,
// along x, then y, then z.
struct TileLoop {
  uint32_t column_tile = blockIdx.x, split = blockIdx.y;
  int64_t batch = blockIdx.z;

  __device__ __forceinline__ Tile tile(const Tiling& t) const { return t.tile(column_tile, split, batch); }

  // Moves on to the block's next tile, if it has one. Every thread of the block must call it, and may use the block's shared
  // memory again afterwards.
  __device__ __forceinline__ bool next(const Tiling& t) {
    if (t.column_tiles - column_tile > gridDim.x) {
      column_tile += gridDim.x;
    } else {
      column_tile = blockIdx.x;
      split += gridDim.y;
      if (split >= t.splits) {
        split = blockIdx.y;
        batch += gridDim.z;
        if (batch >= t.batches) return false;
      }
    }
    __syncthreads();
    return true;
  }
};

// Offset of element `index` of an output, from the output's own.
template <Walk walk, int kRank>
__device__ __forceinline__ int64_t element_offset(const Nest<kRank>& reduced, int64_t index) {
  if constexpr (walk == Walk::nested || walk == Walk::deep) return reduced.at(index).in;
  else return walk == Walk::linear ? index * reduced.dims[0].in : index;
}

// load_unit() of a row in nested dims, at offset `row`, from element `begin` on.
template <bool kWhole, int V, int kCount, int kElements, int kInner, class Source>
__device__ __forceinline__ void load_nested(Vector<typename Source::Element, V> (&x)[kCount][kElements], const Source& source,
                                            const Nest<Source::kRank>& reduced, const Stride<kInner>& next_in_lane, int64_t row,
                                            int64_t begin, int left) {
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    Cursor at = reduced.template cursor<kInner>(begin + g * kWarp * V);
#pragma unroll
    for (int d = 0; d < kElements; ++d, next_in_lane.move(at))
      x[g][d] = load_part<V, kWhole>(source, g * kWarp * V + d * kLanes + V <= left, row + at.offset);
  }
}

// The same in any number of dims.
template <bool kWhole, int V, int kCount, int kElements, int kInner, class Source>
__device__ __forceinline__ void load_deep(Vector<typename Source::Element, V> (&x)[kCount][kElements], const Source& source,
                                          const Nest<Source::kRank>& reduced, const Stride<kInner>& next_in_lane, int64_t row,
                                          int64_t begin, int left) {
  if constexpr (is_lean<Source> && !is_any<Source>)  // plain sums have kernels of their own for these
    if (reduced.are_few()) return load_nested<kWhole>(x, source, reduced, next_in_lane.in_two(), row, begin, left);
  if (reduced.moves()) return load_nested<kWhole>(x, source, reduced, next_in_lane, row, begin, left);
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
#pragma unroll
    for (int d = 0; d < kElements; ++d) {
      const int e = g * kWarp * V + d * kLanes;
      x[g][d] = load_part<V, kWhole>(source, e + V <= left, row + reduced.at(begin + e).in);
    }
  }
}

template <class Source, class Acc>
struct Args {
  Source source;
  int64_t length;
  int32_t warp_columns, batches;
  Tiling tiling;
  OutputOf<Source, Acc> output;
  Nest<Source::kRank> kept, reduced;
  Stride<kInnerDims> next_in_lane, next_leaf;  // to the next element of a leaf, and to the next leaf's
  RingPlan ring;
  InputSpan input;

  // Offset of element `index` of an output, from the output's own.
  template <Walk walk>
  __device__ __forceinline__ int64_t element(int64_t index) const {
    return element_offset<walk>(reduced, index);
  }
};

}  // namespace gpureduce::cuda
