// The arguments of reducing kernels. Those that a kernel needs for its first loads stand first, so that one line of the
// constant cache holds them: with a cold cache a kernel waits for one line after the other.
#pragma once

#include "../numeric/finish.h"
#include "../plan/plan.h"
#include "../problem/nest.h"
#include "launch.h"
#include "load/pairs.cuh"

namespace gpureduce::cuda {

// Stores V results, `stride` apart; in whole granules if they are contiguous and aligned.
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

// The same, for a dtype with is_native().
template <class Number, int V>
__device__ __forceinline__ void store_native(void* out, int64_t index, int64_t stride, DType t, const Number (&v)[V]) {
  if constexpr (std::is_same_v<Number, float>) {
    if (t == DType::BFloat16) return store_as<BFloat16>(out, index, stride, v);
    if (t == DType::Half) return store_as<Half>(out, index, stride, v);
  }
  store_as<Number>(out, index, stride, v);
}

// Finishes and stores any result in any dtype. It is a lot of code, so only join kernels and converted segments use it.
template <class Acc>
__device__ __noinline__ void store_any(void* out, int64_t index, DType t, Finish finish, int64_t count, Acc v) {
  if (finish == Finish::none) gpureduce::store(out, index, t, v);
  else gpureduce::store(out, index, t, finished(v, finish, count));
}

// What kernels of an element store by ResultPath::own: bools from counts, and maxima of integers in their own type.
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

// The root that kernels of an element can take.
template <class Element>
constexpr Finish kRoot = Finish::none;
template <class In>
inline constexpr Finish kRoot<Mapped<In, Map::square>> = Finish::square_root;
template <class In>
inline constexpr Finish kRoot<Mapped<In, Map::cube>> = Finish::cube_root;

struct AllPaths {};  // Output's Element in join kernels, which write results of all paths

// Writes values: to the results, finished and rounded, or unchanged to the partial sums, which the join kernel reads. For
// example bfloat16 means of rows of 100 go by path native: the float 12.5 is divided by 100, and 0.125 is rounded and stored in
// 2 bytes.
template <class Acc, class Element>
struct Output {
  void* to;
  bool partial;     // `to` are partial sums, and the path is raw
  ResultPath path;  // how kernels write
  DType dtype;
  Finish finish;
  int64_t count;  // elements per output

  // `place`: of the output. `part`: the index of the partial sum.
  template <class In>
  __device__ __forceinline__ void write_at(const Spot<In>& place, int64_t part, Acc v) const {
    if (path != ResultPath::raw) return store<1>(place.out, 0, {v});
    static_cast<Number<Acc>*>(to)[partial ? part : place.out] = number(v);
  }
  // Neighbouring outputs. Their results lie `stride` apart from `place` on, their partial sums side by side.
  template <class In, int V>
  __device__ __forceinline__ void write_neighbours(const Spot<In>& place, int64_t stride, int64_t part,
                                                   const Acc (&v)[V]) const {
    if (partial) return store_as<Acc>(to, part, 1, v);
    store<V>(place.out, stride, v);
  }

 private:
  using Own = typename OwnResult<Element>::type;

  template <int V>
  __device__ __forceinline__ void store(int64_t place, int64_t stride, const Acc (&v)[V]) const {
    if constexpr (std::is_same_v<Element, AllPaths>) {
      if (path > ResultPath::native) {
#pragma unroll
        for (int j = 0; j < V; ++j) store_any(to, place + j * stride, dtype, finish, count, v[j]);
        return;
      }
    } else if constexpr (!std::is_void_v<Own>) {
      if (path == ResultPath::own) return store_own(place, stride, v);
    }
    Number<Acc> x[V];
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] = finish == Finish::none ? number(v[j]) : finished_natively(v[j]);
    store_native(to, place, stride, dtype, x);
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
  __device__ __forceinline__ Number<Acc> finished_natively(Acc v) const {
    const auto x = number(v);
    if constexpr (IsLargest<Acc>::value) return opposite(v).value;
    else if constexpr (IsProduct<Acc>::value || std::is_integral_v<Acc>) return x;
    else if constexpr (std::is_same_v<Element, AllPaths>) return finished(v, finish, count);
    else if constexpr (kRoot<Element> == Finish::square_root) return square_root(x);
    else if constexpr (kRoot<Element> == Finish::cube_root) return cube_root(x);
    else return quotient(x, count);
  }
};

// Makes a variance, or its root, and a mean from moments. Both need the output's first element, which is read again.
template <class Element>
struct Output<Moments, Element> {
  void* to;  // variances, or partial sums
  bool partial;
  void* mean;
  DType dtype;
  variance::Finishing finishing;
  ConvertedInput input;

  __device__ __forceinline__ void write_at(const Offsets& place, int64_t part, Moments v) const {
    if (partial) static_cast<Moments*>(to)[part] = v;
    else store(*this, place, v, first(place.in));
  }
  template <int V>
  __device__ __forceinline__ void write_neighbours(const Offsets& place, int64_t stride, int64_t part,
                                                   const Moments (&v)[V]) const {
#pragma unroll
    for (int j = 0; j < V; ++j) write_at({place.in + j, place.out + j * stride}, part + j, v[j]);
  }

 private:
  template <class In>
  __device__ __forceinline__ double first_as(int64_t offset) const {
    return value(load_vector<In, 1>(static_cast<const In*>(input.base) + offset, input.policy)[0]);
  }
  __device__ __forceinline__ double first(int64_t offset) const {
    if constexpr (IsDeviation<Element>::value) return first_as<typename IsDeviation<Element>::In>(offset);
    else return fetch_all<double, 1, true>(input, [=](int) { return PredicatedOffset{offset, true}; }).of[0];
  }
  // Not inlined, since it is a lot of code. By value, since kernel parameters are slow to read through an address.
  static __device__ __noinline__ void store(Output o, Offsets place, Moments v, double first) {
    const auto found = o.finishing(v, first);
    gpureduce::store(o.to, place.out, o.dtype, found.variance);
    gpureduce::store(o.mean, place.out, o.dtype, found.mean);
  }
};

// Writes indices.
template <class Element>
struct Output<Indexed, Element> {
  void* to;  // indices, or partial results
  bool partial;

  template <class In>
  __device__ __forceinline__ void write_at(const Spot<In>& place, int64_t part, Indexed v) const {
    if (partial) static_cast<Indexed*>(to)[part] = v;
    else static_cast<int64_t*>(to)[place.out] = v.index;
  }
  template <class In, int V>
  __device__ __forceinline__ void write_neighbours(const Spot<In>& place, int64_t stride, int64_t part,
                                                   const Indexed (&v)[V]) const {
#pragma unroll
    for (int j = 0; j < V; ++j) write_at(Spot<In>{place.in, place.out + j * stride}, part + j, v[j]);
  }
};

// The Output of a reduction. `partials`: null if the kernel writes the results.
template <class Element, class Acc>
Output<Acc, Element> output_of(const Reduction& r, ResultPath path, Acc* partials) {
  if constexpr (std::is_same_v<Acc, Moments>) {
    const ConvertedInput input{r.input, l2_policy(), {r.in, Map::value, r.negate, false}};
    return {partials ? partials : r.output, partials != nullptr, r.mean, r.out, r.finishing(), input};
  } else if constexpr (std::is_same_v<Acc, Indexed>) {
    return {partials ? partials : r.output, partials != nullptr};
  } else {
    if (partials) return {partials, true, ResultPath::raw, r.out, r.finish, r.problem.length};
    return {r.output, false, path, r.out, r.finish, r.problem.length};
  }
}

// The tiles that a block takes: the one at its place in the grid, usually the only one, then those that lie whole grids
// further, along x, then y, then z.
struct TileLoop {
  uint32_t column_tile = blockIdx.x, split = blockIdx.y;
  int64_t batch = blockIdx.z;

  __device__ __forceinline__ Tile tile(const Tiling& t) const { return t.tile(column_tile, split, batch); }

  // Moves on to the block's next tile, or returns false if there is none. Every thread of the block must call it, and may use
  // the block's shared memory again afterwards.
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

// The place of element `index` of an output, relative to the output's place.
template <Walk walk, class Source, int kRank, class Place>
__device__ __forceinline__ Place element_place(const Source& source, const Nest<kRank, Place>& reduced, int64_t index) {
  if constexpr (walk == Walk::nested || walk == Walk::deep) return reduced.at(index).in;
  else if constexpr (walk == Walk::linear) return reduced.dims[0].in * index;
  else return beside(source, index);
}

// load_unit() for a row in nested dims. `row`: its place. `begin`: the thread's first element.
template <bool kWhole, int V, int kCount, int kElements, int kRank, int kInner, class Source, class Place>
__device__ __forceinline__ void load_nested(Vector<typename Source::Element, V> (&x)[kCount][kElements], const Source& source,
                                            const Nest<kRank, Place>& reduced, const Stride<kInner, Place>& next_in_lane,
                                            Place row, int64_t begin, int left) {
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
    Cursor at = reduced.template cursor<kInner>(begin + g * kWarp * V);
#pragma unroll
    for (int d = 0; d < kElements; ++d, next_in_lane.move(at))
      x[g][d] = load_part<V, kWhole>(source, g * kWarp * V + d * kLanes + V <= left, row + at.offset);
  }
}

// The same in any number of dims.
template <bool kWhole, int V, int kCount, int kElements, int kRank, int kInner, class Source, class Place>
__device__ __forceinline__ void load_deep(Vector<typename Source::Element, V> (&x)[kCount][kElements], const Source& source,
                                          const Nest<kRank, Place>& reduced, const Stride<kInner, Place>& next_in_lane,
                                          Place row, int64_t begin, int left) {
  if constexpr (engine_of<Source> == Engine::reduced)  // the full engine has separate kernels for few dims
    if (reduced.moves_in_two()) return load_nested<kWhole>(x, source, reduced, next_in_lane.in_two(), row, begin, left);
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
  Output<Acc, typename Source::Element> output;
  Nest<Source::kRank, typename Source::Place> kept, reduced;
  Stride<kInnerDims, typename Source::Place> next_in_lane, next_leaf;  // to a leaf's next element, and to the next leaf
  RingPlan ring;
  InputSpan input;

  template <Walk walk>
  __device__ __forceinline__ auto element(int64_t index) const {
    return element_place<walk>(source, reduced, index);
  }
};

}  // namespace gpureduce::cuda
