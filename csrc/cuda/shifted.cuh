// Rows and columns at odd addresses, in vectors. The elements of a leaf are kLanes apart, so they are all equally far beyond an
// aligned address, their `shift`. A thread therefore reads aligned vectors and adds up what stands at the same place in them;
// only the sums move, down by `shift`, from thread to thread. Memory is read once, and no vector is put together.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

// `x` where its elements are from `begin` to before `end`, and padding elsewhere.
template <class Element, int V>
__device__ __forceinline__ Vector<Element, V> keep(Vector<Element, V> x, int begin, int end) {
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (j < begin || j >= end) x.set(j, padding_element<Element>());
  return x;
}

// Moves lane sums down by `shift`, less than V: those of the warp's threads, group after group. The first go to where the last
// were. All threads of the warp must call it, and neighbours with the same shift.
template <int kGroups, class Element, class Acc, int V>
__device__ __forceinline__ void move_down(Lanes<Element, Acc, V>* lanes, int shift) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = V / 2; step > 0; step /= 2) {
    typename Lanes<Element, Acc, V>::LaneSum next[kGroups][V / 2];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < step; ++j)
        next[g][j] = shuffle(lane == 0 ? lanes[(g + 1) % kGroups].sum[j] : lanes[g].sum[j], (lane + 1) % kWarp);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < V; ++j)
        lanes[g].sum[j] =
            choose(shift & step, j + step < V ? lanes[g].sum[(j + step) % V] : next[g][(j + step) % V], lanes[g].sum[j]);
    }
  }
}

// The chunk from element `chunk` on of a row of `length` elements, for one warp. Reads no granule without an element of the
// row.
template <int V, class Acc, class Source>
__device__ __forceinline__ Acc shifted_chunk(const Source& source, int64_t length, int64_t row, int64_t chunk) {
  using Element = typename Source::Element;
  using Sums = RowLanes<Element, Acc, V>;
  constexpr int kGroups = kLanes / (kWarp * V);
  const int lane = threadIdx.x % kWarp, shift = source.template misalignment<V>(row);
  const int64_t rest = length - chunk;
  const int left = static_cast<int>(min(rest, int64_t{kChunk})), reach = static_cast<int>(min(rest, int64_t{kChunk + V}));
  // The first thread's vectors begin with elements of the lanes before: the first with the last chunk's, and this chunk's last
  // are in one more.
  const bool wraps = lane == 0 && shift > 0;
  const Vector<Element, V> more =
      source.template load_if<V>(wraps && kChunk - shift + V <= reach, row + chunk + kChunk - shift);
  Sums lanes[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int first = (g * kWarp + lane) * V - shift;
    Vector<Element, V> x[kDepth];
    if (left == kChunk) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) x[d] = source.template load<V>(row + chunk + first + d * kLanes);
    } else {
#pragma unroll
      for (int d = 0; d < kDepth; ++d)
        x[d] = source.template load_if<V>(first + d * kLanes + V <= left, row + chunk + first + d * kLanes);
    }
    if (g == 0 && wraps) x[0] = keep(x[0], shift, V);
    lanes[g].start(x[0]);
#pragma unroll
    for (int d = 1; d < kDepth; ++d) lanes[g].add(x[d]);
    if (g == 0 && wraps) lanes[0].add(keep(more, 0, shift));
    if (reach < kChunk + V) {
      // What no whole vector reached: at most one vector, whose elements are the last of their lanes.
      const int depth = kDepth + (g == 0 && wraps);
      const int whole = first + V <= reach ? min(depth, (reach - V - first) / kLanes + 1) : 0, e = first + whole * kLanes;
      if (whole < depth && e < left) {
#pragma unroll
        for (int j = 0; j < V; ++j)
          if (e + j < left) lanes[g].add(j, source.template load<1>(row + chunk + e + j)[0]);
      }
    }
  }
  if constexpr (!Sums::kOrderFree) move_down<kGroups>(lanes, shift);
  Acc values[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) values[g] = lanes[g].join();
  return warp_join_groups(values);
}

// kLeaves neighbouring leaves of the thread's V columns from `column` on, up to kElements elements each; all in flight at once,
// and joined in registers. All threads of the warp must call it, and neighbours for the same rows: the first one is at `place`.
// `columns` are wanted; beyond them it reads the first. kWhole: all elements are there, and no vector reaches out of the input;
// or else those of the first `rows`.
template <int V, int kElements, int kLeaves, bool kWhole, class Acc, class Source>
__device__ __forceinline__ Lanes<typename Source::Element, Acc, V> shifted_leaves(const Source& source, const InputSpan& input,
                                                                                  int64_t place, int64_t pitch, int rows,
                                                                                  int column, int columns) {
  using Element = typename Source::Element;
  const auto shift_of = [&](int row) { return source.template misalignment<V>(place + row * pitch); };
  const auto vector_of = [&](int row) {
    const int shift = shift_of(row);
    return place + row * pitch + (column - shift < columns ? column : 0) - shift;
  };
  Vector<Element, V> x[kLeaves][kElements];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
    const int64_t first = vector_of(l);
#pragma unroll
    for (int d = 0; d < kElements; ++d) {
      const int64_t at = first + d * kLanes * pitch;
      if constexpr (kWhole) x[l][d] = source.template load<V>(at);
      else x[l][d] = source.template load_if<V>(l + d * kLanes < rows && source.inside(input, at, at + V), at);
    }
  }
  if constexpr (!kWhole) {
    // Only the input's first and its last row may have a vector that reaches out of it.
    const auto cut = [&](int row) { return !source.inside(input, vector_of(row), vector_of(row) + V); };
    const int last = rows - 1;
    if (rows > 0 && cut(0)) x[0][0] = source.template load_inside<V>(input, vector_of(0));
    if (rows > 0 && last % kLanes < kLeaves && last / kLanes < kElements && cut(last)) {
      const Vector<Element, V> end = source.template load_inside<V>(input, vector_of(last));
#pragma unroll
      for (int i = 0; i < kLeaves * kElements; ++i)
        if (i / kElements + i % kElements * kLanes == last) x[i / kElements][i % kElements] = end;
    }
  }
  Lanes<Element, Acc, V> lanes[kLeaves];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
    lanes[l].start(x[l]);
    move_down<1>(lanes + l, shift_of(l));
  }
  return join_lanes(lanes);
}

}  // namespace gpureduce::cuda
