// Reductions over expanded dims alone, whose elements of an output are all the same one: the gradient of a broadcast.
#pragma once

#include "../args.cuh"

namespace gpureduce::cuda {

// The contract's sum of `length` times v, without adding them all: leaves of as many elements are equal, and so are the sums of
// as many equal leaves. What is left of a level of the tree are a few runs of equal values.
template <class Acc>
__device__ Acc sum_of_equals(Acc v, int64_t length) {
  // Leaves: of whole chunks, then those that have one element more, then the others.
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

    // Adds equal neighbours up, level by level, as long as that leaves none over.
    __device__ __forceinline__ void join() {
      const int levels = __ffsll(count) - 1;
      for (int level = 0; level < levels; ++level) value = value + value;
      count >>= levels;
    }
  };
  // Most often all leaves are equal, and as many as a power of two: then nothing needs memory.
  const bool equal = rest == 0 || (chunks == 0 && (depth == 0 || more == 0));
  Run all = rest == 0 ? Run{whole, chunks * kLanes} : more == 0 ? Run{deep, kLanes} : Run{deeper, more};
  if (equal) {
    all.join();
    if (all.count == 1) return all.value;
  }
  constexpr int kMost = 12;  // three runs, between which up to two single values come to stand, and what these become
  Run runs[kMost];
  int n = 0;
  const auto append = [&](Acc value, int64_t count) {
    if (count > 0) runs[n++] = {value, count};
  };
  if (equal) {
    append(all.value, all.count);
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
    bool waits = false;  // for its right neighbour
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

// A thread an output.
template <class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp) expanded(const __grid_constant__ Args<Source, Acc> a) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t output = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; output < a.tiling.outputs; output += threads) {
    const auto place = a.kept.at(output);
    RowLanes<typename Source::Element, Acc, 1> lane;
    lane.start(load_part<1, true>(of_outputs<1>(a.source, true, place.in), true, place.in));
    const Acc v = lane.join();
    if constexpr (std::is_integral_v<Acc>)  // modulo 2^64
      a.output.write_at(place, output, static_cast<Acc>(static_cast<uint64_t>(v) * static_cast<uint64_t>(a.length)));
    else a.output.write_at(place, output, sum_of_equals(v, a.length));
  }
}

}  // namespace gpureduce::cuda
