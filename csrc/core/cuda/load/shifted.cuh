// Rows and columns at misaligned addresses, read in vectors. The elements of a leaf are kLanes apart, so all of them lie
// equally far, `shift` elements, beyond an aligned address. A thread reads aligned vectors and adds elements at equal
// positions; only the sums move down by `shift`, from thread to thread. If leaves have few elements, each vector is assembled
// from two aligned ones instead. Memory is read once either way.
//
// The vector with a row's first element may begin up to 15 bytes before the row, and so before the input. No such load faults,
// whoever made the memory: torch's allocator, from_blob() or DLPack. A vector has at most 16 bytes and is aligned to its size,
// so it lies in one page of memory; it has a byte of the input, so that page is mapped. The sums do not use the bytes before.
#pragma once

#include "../args.cuh"

namespace gpureduce::cuda {

// A warp sums the chunk that begins at element `chunk` of a row of `length` elements. With kElements < kDepth, a leaf has at
// most kElements elements. Reads no granule without an element of the row.
template <int V, int kElements, class Acc, class Source>
__device__ __forceinline__ Acc shifted_chunk(const Source& source, const InputSpan& input, int64_t length, int64_t row,
                                             int64_t chunk) {
  using Element = typename Source::Element;
  using Sums = RowLanes<Element, Acc, V>;
  constexpr int kGroups = kLanes / (kWarp * V), kSpan = kElements * kLanes;
  constexpr int kAtOnce = kGroups * kElements <= kLoads ? kGroups : 1;  // groups whose loads are in flight together
  const int lane = threadIdx.x % kWarp, shift = source.template misalignment<V>(row);
  const int64_t begin = row + chunk, rest = length - chunk;
  const int left = static_cast<int>(min(rest, int64_t{kSpan})), reach = static_cast<int>(min(rest, int64_t{kSpan + V}));
  // Two threads read one vector more than kElements: thread 0, whose vectors begin with elements of the last lanes, so that the
  // chunk's last elements are in an extra vector; and the thread that has the row's last elements, if they fill no vector. The
  // chunk's elements in an extra vector are the last of their lanes.
  const bool wraps = lane == 0 && shift > 0, one_more = wraps && kSpan - shift + V <= reach;
  const int tail_begin = reach - (reach + shift) % V, tail_vector = (tail_begin + shift) / V;
  const bool has_tail = reach < kSpan + V && tail_begin < left && tail_vector % kWarp == lane;
  const int more_begin = one_more ? kSpan - shift : tail_begin, more_group = one_more ? 0 : tail_vector / kWarp % kGroups;
  const int64_t more_place = begin + more_begin;
  const bool reads_more = one_more || has_tail, inside = source.inside(input, more_place, more_place + V);
  Vector<Element, V> more = source.template load_if<V>(reads_more && inside, more_place);
  if (reads_more && !inside) more = source.template load_inside<V>(input, more_place);  // at the input's ends
  Sums lanes[kGroups];
#pragma unroll
  for (int base = 0; base < kGroups; base += kAtOnce) {
    Vector<Element, V> x[kAtOnce][kElements];
#pragma unroll
    for (int g = 0; g < kAtOnce; ++g) {
      const int first = ((base + g) * kWarp + lane) * V - shift;
      if (kElements == kDepth && left == kSpan) {
#pragma unroll
        for (int d = 0; d < kElements; ++d) x[g][d] = source.template load<V>(begin + first + d * kLanes);
      } else {
        for_constants(std::make_integer_sequence<int, kElements>{}, [&](auto i) {
          constexpr int d = decltype(i)::value, kBeyond = d * kLanes;
          x[g][d] = source.template load_if<V, kBeyond>(first + kBeyond + V <= left, begin + first);
        });
      }
    }
    if (base == 0 && wraps) x[0][0] = keep(x[0][0], shift, V);
#pragma unroll
    for (int g = 0; g < kAtOnce; ++g) {
      lanes[base + g].start(x[g][0]);
#pragma unroll
      for (int d = 1; d < kElements; ++d) lanes[base + g].add(x[g][d]);
    }
  }
  more = keep(more, 0, left - more_begin);
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    lanes[g].add(kGroups == 1 ? more : choose(more_group == g, more, padding_vector<Element, V>()));
  if constexpr (!Sums::kOrderFree) move_down<kGroups, V / 2>(lanes, shift);
  Acc values[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) values[g] = lanes[g].join();
  return warp_join_groups(values);
}

// Like shifted_chunk(), but moves the elements and not the sums: cheaper if leaves have few elements, so that all are in flight
// at once. The row's last granule must end within the input.
template <int V, int kElements, class Acc, class Source>
__device__ __forceinline__ Acc funneled_chunk(const Source& source, int64_t length, int64_t row, int64_t chunk) {
  using Element = typename Source::Element;
  constexpr int kGroups = kLanes / (kWarp * V);
  const int lane = threadIdx.x % kWarp, shift = source.template misalignment<V>(row);
  const int64_t begin = row + chunk + lane * V - shift;
  const int left = static_cast<int>(length - chunk) - lane * V;  // elements from the thread's first to the row's end
  Vector<Element, V> low[kGroups][kElements], high[kGroups][kElements];
  for_constants(std::make_integer_sequence<int, kGroups * kElements>{}, [&](auto i) {
    constexpr int g = decltype(i)::value / kElements, d = decltype(i)::value % kElements, kBeyond = g * kWarp * V + d * kLanes;
    low[g][d] = source.template load_if<V, kBeyond>(kBeyond < left, begin);
    high[g][d] = source.template load_if<V, kBeyond + V>(kBeyond + V - shift < left, begin);
  });
  Acc values[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    RowLanes<Element, Acc, V> lanes;
#pragma unroll
    for (int d = 0; d < kElements; ++d) {
      const auto x = keep(funnel(low[g][d], high[g][d], shift), 0, left - g * kWarp * V - d * kLanes);
      if (d == 0) lanes.start(x);
      else lanes.add(x);
    }
    values[g] = lanes.join();
  }
  return warp_join_groups(values);
}

// A chunk of fewer than kDepth elements per leaf, read in the cheaper way.
template <int V, int kElements, class Acc, class Source>
__device__ __forceinline__ Acc short_chunk(const Source& source, const InputSpan& input, int64_t length, int64_t row,
                                           int64_t chunk) {
  constexpr bool kOrderFree = RowLanes<typename Source::Element, Acc, V>::kOrderFree;  // then no sums move
  if constexpr (!kOrderFree && 2 * kElements * kLanes / (kWarp * V) <= kLoads) {
    const int over = source.template misalignment<V>(row + length);
    const int64_t end = row + length + (over > 0 ? V - over : 0);
    if (__all_sync(~0u, source.inside(input, end - V, end)))  // uniform in the warp, which the compiler cannot know
      return funneled_chunk<V, kElements, Acc>(source, length, row, chunk);
  }
  return shifted_chunk<V, kElements, Acc>(source, input, length, row, chunk);
}

// Joins kLeaves neighbouring leaves of the thread's V columns from `column` on, with up to kElements elements per leaf. All
// loads are in flight at once. The first row is at `place`. All threads of the warp must call it, neighbours for the same rows.
// A thread beyond `columns` reads the first columns instead. kWhole: all elements exist, and no vector crosses the input's
// bounds; otherwise only the first `rows` rows exist.
template <int V, int kElements, int kLeaves, bool kWhole, class Acc, class Source>
__device__ __forceinline__ Lanes<typename Source::Element, Acc, V> shifted_leaves(const Source& source, const InputSpan& input,
                                                                                  int64_t place, int64_t pitch, int rows,
                                                                                  int column, int columns) {
  using Element = typename Source::Element;
  const auto signed_source = source.with_signs();
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
      x[l][d] = load_part<V, kWhole>(signed_source, l + d * kLanes < rows && source.inside(input, at, at + V), at);
    }
  }
  if constexpr (!kWhole) {
    // Only the input's first and last row may have a vector that crosses the input's bounds.
    const auto cut = [&](int row) { return !source.inside(input, vector_of(row), vector_of(row) + V); };
    const int last = rows - 1;
    if (rows > 0 && cut(0)) x[0][0] = signed_source.template load_inside<V>(input, vector_of(0));
    if (rows > 0 && last % kLanes < kLeaves && last / kLanes < kElements && cut(last)) {
      const Vector<Element, V> end = signed_source.template load_inside<V>(input, vector_of(last));
#pragma unroll
      for (int i = 0; i < kLeaves * kElements; ++i)
        if (i / kElements + i % kElements * kLanes == last) x[i / kElements][i % kElements] = end;
    }
  }
  source.drop_signs(x);
  Lanes<Element, Acc, V> lanes[kLeaves];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
    lanes[l].start(x[l]);
    move_down<1, V / 2>(lanes + l, shift_of(l));
  }
  return join_lanes(lanes);
}

}  // namespace gpureduce::cuda
