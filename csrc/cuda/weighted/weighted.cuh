// Weighted sums: the products of two inputs, each rounded once, then the contract's order. A warp or block takes an aligned
// power-of-two run of leaves, as in the kernels of sums; every element is found through the nested dims of both inputs.
#pragma once

#include <cuda/annotated_ptr>

#include <utility>

#include "../args.cuh"
#include "weighted.h"

namespace gpureduce::cuda {

using weighted::times;

// Whether the second input is one element for all of a vector's neighbours.
enum class Same : uint8_t { none, second };

// Two inputs of dtypes that the kernel is compiled for. The offsets of `first` are a nest's `in`, those of `second` its `out`.
template <class A, class B, class Accumulates>
struct Pair {
  using Acc = Accumulates;
  using Writer = Output<Acc, void>;
  static constexpr int kRank = kFastRank, kLargest = sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B);
  static constexpr bool kOnce = false;
  const A* first;
  const B* second;
  uint64_t first_policy, second_policy;

  // V neighbours of each input, or one of the second for all of them.
  template <int V, Same same>
  struct Loaded {
    static constexpr int kSecond = same == Same::second ? 1 : V;
    Vector<A, V> first;
    Vector<B, kSecond> second;

    __device__ __forceinline__ Acc product(int j) const {
      return times(weighted::factor<Acc>(first[j]), weighted::factor<Acc>(second[kSecond == 1 ? 0 : j]));
    }
  };

  // kAlways: whether or not it is wanted.
  template <int V, Same same, bool kAlways, class Held>
  __device__ __forceinline__ Loaded<V, same> load(bool wanted, Offsets at, const Held&) const {
    constexpr int kSecond = Loaded<V, same>::kSecond;
    if constexpr (kAlways)
      return {load_vector<A, V>(first + at.in, first_policy), load_vector<B, kSecond>(second + at.out, second_policy)};
    else
      return {load_vector_if<A, V>(wanted, first + at.in, first_policy, padding_vector<A, V>().bits),
              load_vector_if<B, kSecond>(wanted, second + at.out, second_policy, padding_vector<B, kSecond>().bits)};
  }
};

// An input of any dtype.
inline AnyInput any_of(const weighted::Input& input) {
  return {input.data, l2_policy(), {input.dtype, Map::value, input.negate, false}};
}

// A product of elements of any dtypes that are known by their places; and what it is.
template <class Acc>
struct AnyProduct {
  AnyInput first, second;
  Accumulator kind;
  bool nonzero, wanted;
  Offsets at;
};
template <class Acc>
struct KnownProduct {
  Acc value;
  __device__ __forceinline__ Acc product(int) const { return value; }
};

template <class Acc, int kCount, int kElements>
__device__ __forceinline__ auto ready(const AnyProduct<Acc> (&x)[kCount][kElements]) {
  const AnyProduct<Acc>& own = x[0][0];
  Ready<KnownProduct<Acc>, kCount, kElements> made;
  const auto multiply = [&](auto product) {
    fetch_pairs<decltype(product)>(x, own.first, own.second, made, [&](auto a, auto b) {
      return KnownProduct<Acc>{weighted::counted<Acc>(times(a, b), own.nonzero)};
    });
  };
  if constexpr (std::is_integral_v<Acc>) {
    if (own.kind == Accumulator::f32) multiply(float{});
    else if (own.kind == Accumulator::f64) multiply(double{});
    else multiply(Acc{});
  } else {
    multiply(Acc{});
  }
  return made;
}

// Two inputs of any dtypes, converted at run time, in any number of dims.
template <class Accumulates>
struct AnyPair {
  using Acc = Accumulates;
  using Writer = Output<Acc, void>;
  static constexpr int kRank = kMaxRank, kLargest = kGranule;
  static constexpr bool kOnce = false;
  AnyInput first, second;
  Accumulator kind;  // of the product
  bool nonzero;

  template <int V, Same same>
  using Loaded = AnyProduct<Acc>;

  template <int V, Same same, bool kAlways, class Held>
  __device__ __forceinline__ AnyProduct<Acc> load(bool wanted, Offsets at, const Held&) const {
    static_assert(V == 1);
    return {first, second, kind, nonzero, wanted, at};
  }
};

// What is needed first stands first (args.cuh).
template <class Source>
struct WeightedArgs {
  using Acc = typename Source::Acc;
  using Offset = std::conditional_t<Source::kOnce, int64_t, Offsets>;  // the second input's element is found once
  Source source;
  int64_t length, outputs;
  int32_t run, log_width;
  uint32_t blocks_along;  // x
  int32_t warps;          // of a block
  Nest<Source::kRank> kept;
  Offsets step;  // from element to element of an output, unless their dims are nested
  int64_t splits, columns, column_tiles;
  int32_t tile_leaves;
  typename Source::Writer output;
  Nest<Source::kRank> results, reduced;  // of the latter and of `kept`, the offsets are those of both inputs
  Stride<1, Offset> next;                // in two nested dims: to the next element that a thread loads

  // The block's number in a grid that may have more blocks than fit along x.
  __device__ __forceinline__ int64_t block() const { return int64_t{blockIdx.y} * blocks_along + blockIdx.x; }
  __device__ __forceinline__ int64_t warp() const { return block() * warps + threadIdx.x / kWarp; }
};

__device__ __forceinline__ Offsets both(Offsets place) { return place; }
__device__ __forceinline__ Offsets both(int64_t place) { return {place, 0}; }

// Calls load(i, place) for kCount elements of an output in nested dims, kStep apart, from element `begin` on. Two dims, as most
// are that do not merge, are walked without divisions.
template <int kCount, int kStep, class Source, class Load>
__device__ __forceinline__ void walk_nested(const WeightedArgs<Source>& a, int64_t begin, Load load) {
  if (a.reduced.are_few()) {
    auto at = a.reduced.template cursor<1, typename WeightedArgs<Source>::Offset>(begin);
#pragma unroll
    for (int i = 0; i < kCount; ++i, a.next.move(at)) load(i, both(at.offset));
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) load(i, a.reduced.at(begin + i * kStep));
}

// Blocks that are to fit on a multiprocessor: the fewer registers the loads in flight take, and the sums of `leaves` that are
// joined one after the other, the more.
template <int V, Same same, class Source>
constexpr int weighted_blocks(int loads, int leaves) {
  if (Source::kRank > kFastRank) return 2;
  int kept = 1;
  while (1 << kept < 2 * leaves) ++kept;
  const int sums = V * (kept * static_cast<int>(sizeof(typename Source::Acc)) / 4 - 1);  // above those of one word each
  const int registers = loads * static_cast<int>(sizeof(typename Source::template Loaded<V, same>)) / 4 + sums;
  return registers > (Source::kOnce ? 60 : 48) ? 2 : 3;  // a second input has addresses of its own
}

// How the elements of an output lie in both inputs.
// dense   side by side, or those of the second one the same
// linear  one stride apart
// nested  in nested dims
template <int V, Walk walk, Same same, class Source>
__device__ __forceinline__ Offsets element(const WeightedArgs<Source>& a, int64_t index) {
  if constexpr (walk == Walk::nested) return a.reduced.at(index);
  else if constexpr (walk == Walk::linear) return a.step * index;
  else return {index, same == Same::none ? index : 0};
}

// n = quotient * by + rest. Most numbers have 32 bits, which are divided faster.
struct Divided { int64_t quotient, rest; };
__device__ __forceinline__ Divided divide(int64_t n, int64_t by) {
  if (by == 1) return {n, 0};
  if (((n | by) >> 32) == 0) {
    const uint32_t q = static_cast<uint32_t>(n) / static_cast<uint32_t>(by);
    return {q, static_cast<uint32_t>(n) - q * static_cast<uint32_t>(by)};
  }
  return {n / by, n % by};
}

// What an output's products have in common. Sources with kOnce, whose second input is one element an output, load it once for
// an output, or for V neighbouring ones.
struct Unheld {};
template <int V, Same same, class Source>
__device__ __forceinline__ auto hold(const Source& source, bool wanted, Offsets place) {
  if constexpr (Source::kOnce) return source.template hold<V, same>(wanted, place);
  else return Unheld{};
}
// The same for an output whose first vector a thread of the warp has loaded.
template <int V, class Source, class Loaded>
__device__ __forceinline__ auto hold_of(const Source& source, const Loaded& x, int lane) {
  if constexpr (Source::kOnce) return source.template hold_of<V>(x, lane);
  else return Unheld{};
}

// Writes a result, or a partial sum. Writers with kWantsFirst make a result of an output's first element too: `first` is what
// the output's products have in common, if that is known, or else it is read.
template <class Writer, int kRank, class Acc, class First = Unheld>
__device__ __forceinline__ void write(const Writer& writer, const Nest<kRank>& results, int64_t output, int64_t partial,
                                      const Acc& sum, const First& first = {}) {
  if constexpr (!Writer::kWantsFirst) writer.write(results, output, partial, sum);
  else if constexpr (std::is_same_v<First, Unheld>)
    writer.write(results, output, partial, sum, [&](int64_t at) { return writer.firsts.read(at); });
  else writer.write(results, output, partial, sum, [&](int64_t) { return first.first; });
}

// A product, or padding if it is not wanted, added to a lane's sum; or the first that it has.
template <class Acc, class Loaded, class Held>
__device__ __forceinline__ void add_product(Acc& sum, const Loaded& x, int j, const Held& held, bool wanted, bool starts) {
  if constexpr (std::is_same_v<Held, Unheld>) {
    const Acc product = wanted ? x.product(j) : padding<Acc>();
    sum = starts ? product : sum + product;
  } else {
    held.add(sum, x, j, starts);  // loaded as what changes nothing, if it is not wanted
  }
}

// A vector of them, and the sums of V neighbouring lanes or columns.
template <int V, class Acc, class Loaded, class Held>
__device__ __forceinline__ void add_products(Acc (&sums)[V], const Loaded& x, const Held& held, bool wanted, bool starts) {
#pragma unroll
  for (int j = 0; j < V; ++j) add_product(sums[j], x, j, held, wanted, starts);
}

// A vector of them, each its lane's only one, joined.
template <int V, class Acc, class Loaded, class Held>
__device__ __forceinline__ Acc join_products(const Loaded& x, const Held& held) {
  Acc sums[V];
  add_products(sums, x, held, true, true);
  return join_neighbours(sums);
}

// A unit of a row: weighted_groups() groups of 32 * V neighbouring leaves, from element `start` on. kWhole: all of its elements
// are there.
template <int V, int kElements, Walk walk, Same same, bool kWhole, class Source, class Held>
__device__ __forceinline__ typename Source::Acc weighted_unit(const WeightedArgs<Source>& a, const Held& held, Offsets row,
                                                              int64_t start) {
  using Acc = typename Source::Acc;
  constexpr int kGroups = weighted_groups(V, Source::kLargest, kElements);
  typename Source::template Loaded<V, same> x[kGroups][kElements];
  const int64_t begin = start + threadIdx.x % kWarp * V;
  const int unit_left = static_cast<int>(min(a.length - start, int64_t{kChunk}));
  const int left = static_cast<int>(min(a.length - begin, int64_t{kChunk}));
  const Offsets first = row + element<V, walk == Walk::nested ? Walk::dense : walk, same>(a, begin);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int group = g * kWarp * V;
    const auto load = [&](int d, Offsets at) {
      x[g][d] = a.source.template load<V, same, kWhole>(group + d * kLanes + V <= left, at, held);
    };
    if constexpr (walk == Walk::nested) {
      walk_nested<kElements, kLanes>(a, begin + group, [&](int d, Offsets at) { load(d, row + at); });
    } else {
#pragma unroll
      for (int d = 0; d < kElements; ++d) load(d, first + element<V, walk, same>(a, group + d * kLanes));
    }
  }
  const auto& loaded = ready(x);
  Acc values[kGroups];
  const auto add = [&](auto deep) {  // or leaves of fewer elements
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      Acc sums[V];
#pragma unroll
      for (int d = 0; d < kElements; ++d) {
        if (!decltype(deep)::value && d > 0 && d * kLanes >= unit_left) continue;  // no thread of the warp has any
        const int e = g * kWarp * V + d * kLanes;
        add_products(sums, loaded[g][d], held, kWhole || e + V <= left, d == 0);
      }
      if constexpr (!kWhole && walk == Walk::dense && V > 1) {
        // The row's last vector may be no whole one. Its elements are the last of their lanes.
#pragma unroll 1
        for (int d = 0; d < kElements && a.length % V > 0; ++d) {
          const int e = g * kWarp * V + d * kLanes;
          if (e >= left || e + V <= left) continue;
#pragma unroll
          for (int j = 0; j < V - 1; ++j)
            if (e + j < left) {
              const Offsets at = row + element<V, walk, same>(a, begin + e + j);
              add_product(sums[j], a.source.template load<1, Same::none, true>(true, at, held), 0, held, true, false);
            }
        }
      }
      values[g] = join_neighbours(sums);
    }
  };
  if (kWhole || unit_left > (kElements - 1) * kLanes) add(std::true_type{});
  else add(std::false_type{});
  return warp_join_groups(values);
}

// As carry() in primitives.cuh, of values that all threads of a warp share: each level waits in a thread of its own.
template <class Acc>
__device__ __forceinline__ void carry_in_warp(Acc& waiting, Acc& v, int index) {
  int level = 0;
  for (; index >> level & 1; ++level) v = shuffle(waiting, level) + v;
  waiting = choose(threadIdx.x % kWarp == level, v, waiting);
}

// A warp takes the part of a row that begins with a unit's first element.
template <int V, int kElements, Walk walk, Same same, class Source, class Held>
__device__ __forceinline__ typename Source::Acc take_unit(const WeightedArgs<Source>& a, const Held& held, Offsets row,
                                                          int64_t unit) {
  constexpr int kUnit = kWarp * V * weighted_groups(V, Source::kLargest, kElements), kChunkUnits = kLanes / kUnit;
  const int64_t start = unit / kChunkUnits * kChunk + unit % kChunkUnits * kUnit;
  // In nested dims most of the code finds places, so that it stands once.
  if constexpr (walk != Walk::nested)
    if (start + (kElements - 1) * kLanes + kUnit <= a.length)
      return weighted_unit<V, kElements, walk, same, true>(a, held, row, start);
  return weighted_unit<V, kElements, walk, same, false>(a, held, row, start);
}

// A warp takes `run` neighbouring units of a row, one after the other, and a block's warps neighbouring runs.
template <int V, Walk walk, Same same, class Source>
__global__ void __launch_bounds__(kWeightedThreads,
                                  weighted_blocks<V, same, Source>(kDepth* weighted_groups(V, Source::kLargest, kDepth), 1))
    weighted_rows(const __grid_constant__ WeightedArgs<Source> a) {
  using Acc = typename Source::Acc;
  constexpr int kUnit = kWarp * V * weighted_groups(V, Source::kLargest, kDepth);
  __shared__ Acc slots[kWeightedThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = a.warps;
  const auto [row, split] = divide(a.block(), a.splits);
  if (row >= a.outputs) return;
  const Offsets place = a.kept.at(row);
  const int64_t first = (split * warps + warp) * a.run, units = (leaf_count(a.length) + kUnit - 1) / kUnit;
  wait_for_previous_kernel();
  allow_next_kernel();
  const auto held = hold<V, same>(a.source, true, place);
  Acc waiting = padding<Acc>(), sum = padding<Acc>();
  for (int i = 0; i < a.run; ++i) {
    sum = first + i < units ? take_unit<V, kDepth, walk, same>(a, held, place, first + i) : padding<Acc>();
    carry_in_warp(waiting, sum, i);
  }
  if (warps > 1) {
    if (lane == 0) slots[warp] = sum;
    __syncthreads();
    if (warp > 0) return;
    sum = warp_join(lane < warps ? slots[lane] : padding<Acc>(), 1, warps);
  }
  if (lane == 0) write(a.output, a.results, row, row * a.splits + split, sum, held);
}

// Rows of one unit: a warp takes `run` neighbouring ones, one after the other, and its threads finish a result each.
template <int V, int kElements, Walk walk, Same same, class Source>
__global__ void __launch_bounds__(kWeightedThreads,
                                  weighted_blocks<V, same, Source>(kElements* weighted_groups(V, Source::kLargest, kElements),
                                                                   1))
    weighted_whole_rows(const __grid_constant__ WeightedArgs<Source> a) {
  using Acc = typename Source::Acc;
  const int lane = threadIdx.x % kWarp;
  const int64_t first = a.warp() * a.run, own = first + lane;
  const bool owns = lane < a.run && own < a.outputs;
  wait_for_previous_kernel();
  allow_next_kernel();
  struct Row {
    Acc sum;
    decltype(hold<V, same>(a.source, true, Offsets{})) held;
  } mine{};
#pragma unroll 1
  for (int turn = 0; turn < a.run && first + turn < a.outputs; ++turn) {
    const Offsets place = a.kept.at(first + turn);
    const auto held = hold<V, same>(a.source, true, place);
    const Acc sum = take_unit<V, kElements, walk, same>(a, held, place, 0);
    if (turn == lane) mine = {sum, held};
  }
  if (owns) write(a.output, a.results, own, own, mine.sum, mine.held);
}

// Rows whose every element is a leaf: 2^log_width neighbouring threads a row, some rows at a time, and `run` times so many one
// after the other. Threads share the joins of the rows of a turn: while a thread has several, it keeps one half of them and
// hands the other over. Then threads own rows: of one turn if they are many, and else those of a turn are owned by the first
// threads, those of the next turn by the next, so that all finish results at the same time.
template <int V, int kGroups, Walk walk, Same same, class Source>
__global__ void __launch_bounds__(kWeightedThreads, walk == Walk::nested ? 2 : weighted_blocks<V, same, Source>(kLoads, 1))
    weighted_short_rows(const __grid_constant__ WeightedArgs<Source> a) {
  using Acc = typename Source::Acc;
  constexpr int kRows = weighted_rows_at_once(kGroups), kValues = kRows * kGroups;
  const int lane = threadIdx.x % kWarp, width = 1 << a.log_width, side = kWarp >> a.log_width;
  const int64_t begin_row = a.warp() * a.run * kRows * side;
  const int member = lane & (width - 1), begin = member * V, length = static_cast<int>(a.length);
  const int own = kGroups == 1 ? member % kRows : lane % kValues / kGroups;
  const int own_turn = kGroups == 1 ? member / kRows : lane / kValues * kGroups + lane % kGroups;
  wait_for_previous_kernel();
  allow_next_kernel();
  if (begin_row >= a.outputs) return;
  constexpr bool kNested = walk == Walk::nested;
  // A thread's row of all turns, if each has one.
  const int64_t own_row = begin_row + (own_turn * kRows + own) * side + (lane >> a.log_width);
  const bool owns = own_turn < a.run && (kGroups > 1 || width >= kRows) && own_row < a.outputs;
  Offsets inner[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) inner[g] = element<V, walk, same>(a, (kNested ? begin : 0) + g * kWarp * V);
  Acc mine = padding<Acc>();
#pragma unroll 1
  for (int turn = 0; turn < a.run; ++turn) {
    const int64_t first = begin_row + turn * kRows * side + (lane >> a.log_width);
    const int rows = static_cast<int>(min(a.outputs - first, int64_t{kRows * kWarp}));  // from the first on
    const auto has = [&](int r, int g) { return r * side < rows && begin + g * kWarp * V < length; };
    Offsets place[kRows];
    if (a.kept.rank <= 1) {
      const Offsets pitch{a.kept.rank ? a.kept.dims[0].in : 0, a.kept.rank ? a.kept.dims[0].out : 0}, one = pitch * side;
      place[0] = pitch * first;
      if constexpr (!kNested) place[0] = place[0] + element<V, walk, same>(a, begin);
#pragma unroll
      for (int r = 1; r < kRows; ++r) place[r] = place[r - 1] + one;
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        place[r] = a.kept.at(r * side < rows ? first + r * side : 0);
        if constexpr (!kNested) place[r] = place[r] + element<V, walk, same>(a, begin);
      }
    }
    typename Source::template Loaded<V, same> x[kRows][kGroups];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        x[r][g] = a.source.template load<V, same, false>(has(r, g), place[r] + inner[g], Unheld{});
    }
    const auto& loaded = ready(x);
    Acc values[kValues];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Threads beyond a row's end hold padding of their own, from which it differs by 0.
      const auto held = hold_of<V>(a.source, x[r][0], kGroups > 1 || begin < length ? lane & -width : lane);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const Acc sum = join_products<V, Acc>(loaded[r][g], held);
        values[r * kGroups + g] = kGroups == 1 && Source::kOnce ? sum : choose(has(r, g), sum, padding<Acc>());
      }
    }
    if constexpr (kGroups > 1) {  // these rows have whole warps
      const Acc sum = warp_join(warp_transpose_join(values), 1, kGroups);
      mine = choose(turn == own_turn, sum, mine);
    } else {
#pragma unroll
      for (int mask = 1; mask < kRows; mask *= 2) {
        if (mask >= width) continue;
#pragma unroll
        for (int i = 0; i < kRows / (2 * mask); ++i) {
          Acc keep = values[2 * i], give = values[2 * i + 1];
          exchange_if(lane & mask, keep, give);
          values[i] = keep + shuffle_xor(give, mask);
        }
      }
      for (int mask = kRows; mask < width; mask *= 2) values[0] = values[0] + shuffle_xor(values[0], mask);
      mine = choose(turn == own_turn, values[0], mine);
      for (int i = 0; width < kRows && i < kRows / width; ++i) {  // several rows a thread, in the only turn
        Acc sum = values[0];
#pragma unroll
        for (int r = 1; r < kRows; ++r) sum = choose(i == r, values[r], sum);
        const int64_t row = first + (member + i * width) * side;
        if (row < a.outputs) write(a.output, a.results, row, row, sum);
      }
    }
  }
  if (owns) write(a.output, a.results, own_row, own_row, mine);
}

// Writes the sums of neighbouring outputs.
template <int V, class Source, class Acc>
__device__ __forceinline__ void write_columns(const WeightedArgs<Source>& a, int64_t output, const Acc (&sums)[V]) {
  if constexpr (Source::Writer::kWantsFirst) {
#pragma unroll
    for (int j = 0; j < V; ++j) write(a.output, a.results, output + j, output + j, sums[j]);
  } else {
    a.output.write_neighbours(a.results.at(output).out, V > 1 ? a.results.dims[a.results.rank - 1].out : 0, output, sums);
  }
}

// Columns: 2^log_width threads side by side take V neighbouring outputs each, and the others further leaves of them. A thread
// takes some neighbouring leaves, a unit, and joins them in registers; the sums of a tile's units are joined in shared memory.
// kShort: every element is a leaf.
template <int V, bool kShort, Walk walk, Same same, class Source>
__global__ void __launch_bounds__(kWeightedThreads,
                                  weighted_blocks<V, same, Source>(kDepth, column_unit(kShort, sizeof(typename Source::Acc))))
    weighted_columns(const __grid_constant__ WeightedArgs<Source> a) {
  using Acc = typename Source::Acc;
  using Sums = Neighbours<Acc, V>;
  constexpr int kUnit = column_unit(kShort, sizeof(Acc));
  __shared__ alignas(kGranule) Acc sums[kWeightedSumsBytes / sizeof(Acc)];
  const int width = 1 << a.log_width, side = width * V, slots = blockDim.x >> a.log_width;
  const int across = threadIdx.x & (width - 1), slot = threadIdx.x >> a.log_width;
  const auto [outer, column_tile] = divide(a.block(), a.column_tiles);
  const auto [batch, split] = divide(outer, a.splits);
  if (batch * a.columns >= a.outputs) return;
  const int64_t first = column_tile * side, column = first + across * V, first_leaf = split * a.tile_leaves;
  const bool inside = column < a.columns;
  const Offsets place = inside ? a.kept.at(batch * a.columns + column) : Offsets{0, 0};
  constexpr int kStep = kShort ? 1 : kLanes;  // from element to element that are loaded at once
  const int64_t end = inside ? a.length : 0;
  const Offsets next = a.step * kStep;
  const int units = a.tile_leaves / kUnit;
  const bool whole = kShort && walk == Walk::linear && units == 1 && a.splits == 1;  // a thread's sums are complete
  wait_for_previous_kernel();
  allow_next_kernel();
  const auto held = hold<V, same>(a.source, inside, place);
  for (int unit = slot; unit < units; unit += slots) {
    Sums own, waiting[levels_of(kUnit)];
#pragma unroll 1
    for (int leaf = 0; leaf < (kShort ? 1 : kUnit); ++leaf) {
      typename Source::template Loaded<V, same> x[1][kDepth];
      const int64_t start = leaf_start(first_leaf + unit * kUnit + leaf);
      const int count = static_cast<int>(max(int64_t{0}, min(int64_t{kDepth}, (end - start + kStep - 1) / kStep)));
      const auto load = [&](int d, Offsets at) { x[0][d] = a.source.template load<V, same, false>(d < count, at, held); };
      if constexpr (walk == Walk::nested) {
        walk_nested<kDepth, kStep>(a, start, [&](int d, Offsets at) { load(d, place + at); });
      } else {
        Offsets at = place + a.step * start;
#pragma unroll
        for (int d = 0; d < kDepth; ++d, at = at + next) load(d, at);
      }
      const auto& loaded = ready(x);
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (kShort && (d == 1 || d == 2 || d == 4) && count <= d) break;  // what is left is padding, and the sum is complete
        add_products(own.of, loaded[0][d], held, d < count, kShort || d == 0);
        if (kShort) carry(waiting, own, d);
      }
      if (!kShort) carry(waiting, own, leaf);
    }
    if (!whole) store_granules([&](int g) { return &sums[unit * side + across * V + g]; }, own.of);
    else if (inside) write_columns<V>(a, batch * a.columns + column, own.of);
  }
  if (whole) return;
  for (int run = 1; run < units; run *= kJoinRun) {
    __syncthreads();
    const int left = units / run, items = (left + kJoinRun - 1) / kJoinRun * side;
    for (int item = threadIdx.x; item < items; item += blockDim.x) {
      const int place = (item >> a.log_width) / V * kJoinRun, at = item & (side - 1);
      Acc v[kJoinRun];
#pragma unroll
      for (int k = 0; k < kJoinRun; ++k) v[k] = place + k < left ? sums[(place + k) * run * side + at] : padding<Acc>();
      sums[place * run * side + at] = join_neighbours(v);
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < side && first + at < a.columns; at += blockDim.x) {
    const int64_t output = batch * a.columns + first + at;
    write(a.output, a.results, output, split * a.outputs + output, sums[at]);
  }
}

// --- launching ------------------------------------------------------------------------------------------------------------

constexpr int64_t kAlong = int64_t{1} << 30;  // blocks along x, at most

template <class Args>
cudaError_t start_weighted(Queue queue, void (*kernel)(Args), int64_t blocks, int threads, const Args& args) {
  const Grid grid{static_cast<uint32_t>(blocks < kAlong ? blocks : kAlong),
                  static_cast<uint32_t>((blocks + kAlong - 1) / kAlong)};
  return start_kernel(queue, grid, threads, 0, kernel, args);
}

template <int V, Walk walk, Same same, class Source>
cudaError_t launch_kernel(const WeightedLaunch& launch, const WeightedArgs<Source>& a) {
  const WeightedPlan& plan = launch.plan;
  const auto start = [&](auto kernel) { return start_weighted(launch.queue, kernel, plan.blocks, plan.threads, a); };
  constexpr bool kNested = walk == Walk::nested;
  // An element that an output has once is the same for neighbours in rows, and never in columns.
  constexpr bool kNoRows = Source::kOnce && V > 1 && same == Same::none;
  constexpr bool kNoColumns = V > most_columns(V, sizeof(typename Source::Acc)) || (Source::kOnce && V > 1 && !kNoRows);
  if constexpr (walk != Walk::dense && !kNoColumns) {  // columns lie side by side, and their elements one stride apart
    if (plan.kernel == WeightedKernel::columns) {
      if (a.length <= kLanes) return start(weighted_columns<V, true, walk, same, Source>);
      return start(weighted_columns<V, false, walk, same, Source>);
    }
  }
  if constexpr ((V == 1 || walk != Walk::linear) && !kNoRows) {
    if (plan.kernel == WeightedKernel::rows && plan.elements < kDepth) {
      if constexpr (V < 4 || walk != Walk::dense) return cudaErrorInvalidValue;
      else return start(weighted_whole_rows<V, kFewElements, walk, same, Source>);
    }
    if (plan.kernel == WeightedKernel::rows) return start(weighted_rows<V, walk, same, Source>);
    if constexpr (V == 1 ? walk != Walk::dense : !kNested) {
      if (plan.groups == 1) return start(weighted_short_rows<V, 1, walk, same, Source>);
      if (plan.groups == 4) return start(weighted_short_rows<V, 4, walk, same, Source>);
      if constexpr (V < 4) return start(weighted_short_rows<V, kMostWeightedGroups, walk, same, Source>);
    }
  }
  return cudaErrorInvalidValue;
}

template <int V, Same same, class Source>
cudaError_t launch_walk(const WeightedLaunch& launch, const WeightedArgs<Source>& a) {
  if constexpr (Source::kRank > kFastRank) {
    return launch_kernel<V, Walk::nested, same>(launch, a);
  } else {
    constexpr bool kColumns = Source::kOnce && same == Same::none;
    constexpr int kMost = kGranule / Source::kLargest;
    constexpr int kNested = kColumns ? most_columns(kMost, sizeof(typename Source::Acc)) : kMost;
    if constexpr (V == 1 || V == kNested)
      if (a.reduced.rank > 1) return launch_kernel<V, Walk::nested, same>(launch, a);
    if constexpr (V > 1)
      if (launch.plan.kernel != WeightedKernel::columns) return launch_kernel<V, Walk::dense, same>(launch, a);
    // Long rows wherever they lie, whose places are then constants.
    if constexpr (V == 1 && Source::kOnce)
      if (launch.plan.kernel == WeightedKernel::rows && a.step.in == 1) return launch_kernel<V, Walk::dense, same>(launch, a);
    return launch_kernel<V, Walk::linear, same>(launch, a);
  }
}

// `writer`: where the results or partial sums go.
template <int V, class Source>
cudaError_t launch_weighted(const WeightedLaunch& launch, const Source& source, const typename Source::Writer& writer) {
  constexpr int kRank = Source::kRank;
  const weighted::Reduction& r = launch.reduction;
  const WeightedPlan& plan = launch.plan;
  WeightedArgs<Source> a{source,
                         r.problem.length,
                         r.problem.outputs,
                         plan.run,
                         plan.log_width,
                         static_cast<uint32_t>(plan.blocks < kAlong ? plan.blocks : kAlong),
                         plan.threads / kWarp,
                         weighted::input_nest<kRank>(r.problem.kept, r.problem.outputs),
                         {0, 0},
                         plan.splits,
                         plan.columns,
                         plan.column_tiles,
                         plan.tile_leaves,
                         writer,
                         weighted::output_nest<kRank>(r.problem),
                         weighted::input_nest<kRank>(r.problem.reduced, r.problem.length)};
  if (plan.swapped)
    for (Nest<kRank>* nest : {&a.kept, &a.reduced})
      for (int d = 0; d < nest->rank; ++d) std::swap(nest->dims[d].in, nest->dims[d].out);
  const bool one_by_one = plan.kernel == WeightedKernel::columns && a.length <= kLanes;
  a.next = a.reduced.template stride<1, typename WeightedArgs<Source>::Offset>(one_by_one ? 1 : kLanes);
  if (a.reduced.rank > 0) a.step = {a.reduced.dims[a.reduced.rank - 1].in, a.reduced.dims[a.reduced.rank - 1].out};
  if constexpr (V > 1) {
    if (plan.second_same) return launch_walk<V, Same::second>(launch, a);
  }
  return launch_walk<V, Same::none>(launch, a);
}

// Sums, as they are or rounded to the result.
template <class Source>
typename Source::Writer writer_of(const WeightedLaunch& launch) {
  using Acc = typename Source::Acc;
  return output_of<void>(launch.reduction, launch.reduction.path(), static_cast<Acc*>(launch.partials));
}

// What the L2 is to do with an input: one that does not fit beside others is not to stay.
inline uint64_t weighted_policy(const WeightedLaunch& launch, bool of_self) {
  const weighted::Reduction& r = launch.reduction;
  double bytes = info(of_self ? r.self.dtype : r.weight.dtype).size;
  for (const DimList<weighted::Dim>* dims : {&r.problem.kept, &r.problem.reduced})
    for (const weighted::Dim& d : *dims)
      if ((of_self ? d.self : d.weight) != 0) bytes *= static_cast<double>(d.size);
  return l2_policy(bytes > static_cast<double>(launch.device.l2_bytes) / 4);
}

template <class A, class B, class Acc>
cudaError_t launch_pair(const WeightedLaunch& launch) {
  const weighted::Reduction& r = launch.reduction;
  const bool swapped = launch.plan.swapped;
  using Source = Pair<A, B, Acc>;
  const Source source{static_cast<const A*>((swapped ? r.weight : r.self).data),
                      static_cast<const B*>((swapped ? r.self : r.weight).data), weighted_policy(launch, !swapped),
                      weighted_policy(launch, swapped)};
  constexpr int kMost = kGranule / Source::kLargest;
  const auto writer = writer_of<Source>(launch);
  if (launch.plan.vector == kMost) return launch_weighted<kMost>(launch, source, writer);
  if constexpr (kMost == 8)
    if (launch.plan.vector == 4) return launch_weighted<4>(launch, source, writer);
  return launch_weighted<1>(launch, source, writer);
}

// Pairs of a half with itself, with bool, and with float32.
template <class Small>
cudaError_t launch_small(const WeightedLaunch& launch, DType small) {
  const weighted::Reduction& r = launch.reduction;
  const DType first = (launch.plan.swapped ? r.weight : r.self).dtype, second = (launch.plan.swapped ? r.self : r.weight).dtype;
  if (first == small && second == small) return launch_pair<Small, Small, float>(launch);
  if (first == small && second == DType::Bool) return launch_pair<Small, Boolean, float>(launch);
  if (first == DType::Float && second == small) return launch_pair<float, Small, float>(launch);
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
