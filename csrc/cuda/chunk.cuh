// The sum of a chunk at any address, by one warp.
#pragma once

#include "primitives.cuh"

namespace gpureduce::cuda {

// Moves sums of lanes by kShift elements: a thread's own last ones, then its right neighbour's first. The last thread's
// neighbour is the first one of the next group, and the last group's is the first.
template <int kShift, class Sums, int kGroups>
__device__ __forceinline__ void rotate(Sums (&lanes)[kGroups]) {
  using Sum = typename Sums::LaneSum;
  constexpr int V = sizeof(lanes[0].sum) / sizeof(Sum);
  const int lane = threadIdx.x % kWarp, right = (lane + 1) % kWarp;
  Sum next[kGroups][kShift];
#pragma unroll
  for (int j = 0; j < kShift; ++j) {
    Sum from[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) from[g] = shuffle(lanes[g].sum[j], right);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) next[g][j] = choose(lane == kWarp - 1, from[(g + 1) % kGroups], from[g]);
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j + kShift < V; ++j) lanes[g].sum[j] = lanes[g].sum[j + kShift];
#pragma unroll
    for (int j = 0; j < kShift; ++j) lanes[g].sum[V - kShift + j] = next[g][j];
  }
}
template <int kShift, class Sums, int kGroups>
__device__ __forceinline__ void rotate_if(int shift, Sums (&lanes)[kGroups]) {
  if constexpr (kShift > 0) {
    if (shift == kShift) rotate<kShift>(lanes);
    rotate_if<kShift - 1>(shift, lanes);
  }
}

// The sum of up to a chunk: `count` elements, the first of which is element `shift` of an aligned vector. Vectors are read
// where they are aligned, so that the lanes stand `shift` elements too far to the right, through all of the chunk's depth: they
// are moved once, as sums. read(position) gives the aligned vector so many elements from the first one on; what it holds
// outside of the chunk does no harm. kVectors of them are in flight.
template <int kVectors, class Element, class Acc, class Read>
__device__ __forceinline__ Acc shifted_chunk(int shift, int count, Read read) {
  constexpr int V = 16 / sizeof(Element), kStep = kWarp * V, kGroups = kLanes / kStep;
  constexpr int kRows = kVectors < kGroups ? 1 : kVectors / kGroups < kDepth ? kVectors / kGroups : kDepth;
  using Sums = RowLanes<Element, Acc, V>;
  const int lane = threadIdx.x % kWarp, rows = (count + kLanes - 1) / kLanes;
  const int from = lane == 0 ? shift : 0, to = count + shift - lane * V;  // of the thread's first vector
  Sums lanes[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) lanes[g].clear();
  const auto last = read(rows * kLanes + lane * V);  // where the first lanes' last elements lie
#pragma unroll 1
  for (int first = 0; first < rows; first += kRows) {
    Vector<Element, V> x[kRows][kGroups];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= rows) break;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) x[r][g] = read((first + r) * kLanes + g * kStep + lane * V);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first + r;
      if (row >= rows) break;
      if ((row > 0 || shift == 0) && (row + 1) * kLanes <= count) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) lanes[g].add(x[r][g]);
      } else {
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          lanes[g].add_some(x[r][g], row == 0 && g == 0 ? from : 0, to - row * kLanes - g * kStep);
      }
    }
  }
  lanes[0].add_some(last, 0, to - rows * kLanes);
  if constexpr (!Sums::kOrderFree) rotate_if<V - 1>(shift, lanes);
  Acc values[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) values[g] = lanes[g].join();
  return warp_join_groups(values);
}

}  // namespace gpureduce::cuda
