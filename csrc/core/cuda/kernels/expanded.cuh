// Reductions over expanded dims alone: all elements of an output are one and the same, as in the gradient of a broadcast.
//
// For example 5000 copies of the float v. Chunk 0 has 512 leaves that add v eight times. Chunk 1 has 904 elements: 392 leaves
// of v + v, then 120 leaves of v. So one thread, which loads v once, walks the tree with three runs of equal values: 512, 392
// and 120 of them. Joins of equal neighbours are equal, so one addition per run makes the next level: 256, 196, 60; 128, 98,
// 30; 64, 49, 15. Now the last of the 49 joins the first of the 15, and the level has four runs: 32, 24, 1 and 7. After ten
// levels one value is left, and the thread writes it.
#pragma once

#include "../args.cuh"

namespace gpureduce::cuda {

// The contract's sum of `length` copies of v, without adding them all. Leaves with equally many elements are equal, and so are
// the joins of equal values. So each level of the tree is a few runs of equal values.
template <class Acc>
__device__ Acc sum_of_equals(Acc v, int64_t length) {
  // Leaves of whole chunks; then, in the last chunk, leaves with one element more, and the others.
  const int64_t chunks = length / kChunk;
  const int rest = static_cast<int>(length - chunks * kChunk), depth = rest / kLanes, more = rest - depth * kLanes;
  Acc deeper = v, deep = v, whole = v;
  for (int d = 1; d < kDepth; ++d) {
    whole = whole + v;
    if (d < depth) deep = deep + v;
    if (d <= depth) deeper = deeper + v;
  }
  struct Run {
    Acc value;
    int64_t count;

    // Joins equal neighbours, level by level, while their number is even.
    __device__ __forceinline__ void join() {
      const int levels = __ffsll(count) - 1;
      for (int level = 0; level < levels; ++level) value = value + value;
      count >>= levels;
    }
  };
  // Usually all leaves are equal, and their number is a power of two: then no array is needed.
  const bool equal = rest == 0 || (chunks == 0 && (depth == 0 || more == 0));
  Run single = rest == 0 ? Run{whole, chunks * kLanes} : more == 0 ? Run{deep, kLanes} : Run{deeper, more};
  if (equal) {
    single.join();
    if (single.count == 1) return single.value;
  }
  constexpr int kMost = 12;  // three runs with up to two single values between them, and what these become
  Run runs[kMost];
  int n = 0;
  const auto append = [&](Acc value, int64_t count) {
    if (count > 0) runs[n++] = {value, count};
  };
  if (equal) {
    append(single.value, single.count);
  } else {
    append(whole, chunks * kLanes);
    append(deeper, more);
    append(deep, depth ? kLanes - more : 0);
  }
  while (n > 1 || runs[0].count > 1) {
    if (n == 1 && runs[0].count % 2 == 0) {
      runs[0].join();
      continue;
    }
    const int old = n;
    Run next[kMost];
    n = 0;
    bool waits = false;  // a value waits for its right neighbour
    Acc waiting = v;
    for (int i = 0; i < old; ++i) {
      int64_t count = runs[i].count;
      const Acc value = runs[i].value;
      if (waits) {
        next[n++] = {waiting + value, 1};
        --count;
      }
      if (count > 1) next[n++] = {value + value, count / 2};
      waits = count % 2;
      waiting = value;
    }
    if (waits) next[n++] = {waiting, 1};
    for (int i = 0; i < n; ++i) runs[i] = next[i];
  }
  return runs[0].value;
}

// One thread per output.
template <class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp) expanded(const __grid_constant__ Args<Source, Acc> a) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t output = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; output < a.tiling.outputs; output += threads) {
    const auto place = a.kept.at(output);
    RowLanes<typename Source::Element, Acc, 1> lane;
    lane.start(load_part<1, true>(of_outputs<1>(a.source, true, place.in, output), true, place.in));
    const Acc v = lane.join();
    if constexpr (std::is_integral_v<Acc>)  // modulo 2^64
      a.output.write_at(place, output, static_cast<Acc>(static_cast<uint64_t>(v) * static_cast<uint64_t>(a.length)));
    else a.output.write_at(place, output, sum_of_equals(v, a.length));
  }
}

}  // namespace gpureduce::cuda
