// Joins of threads, warps and blocks. All of them join nearest neighbours first. padding<Acc>() stands for a missing neighbour
// and changes no bit.
#pragma once

#include "lanes.cuh"

namespace gpureduce::cuda {

// Joins kCount values of one thread. kCount is a power of two.
template <int kCount, class T>
__device__ __forceinline__ T join_neighbours(T (&v)[kCount]) {
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * step) v[i] = v[i] + v[i + step];
  }
  return v[0];
}

// Sums of neighbouring columns.
template <class Acc, int V>
struct Neighbours {
  Acc of[V];

  __device__ __forceinline__ Neighbours operator+(const Neighbours& right) const {
    Neighbours sums;
#pragma unroll
    for (int j = 0; j < V; ++j) sums.of[j] = of[j] + right.of[j];
    return sums;
  }
};

constexpr int kUnrolledLevels = 8;  // with more levels `waiting` is in local memory, and the code is a short loop

// Joins values that arrive one by one, as a binary counter carries. `v` is the value of this index; on return it is the sum of
// the longest aligned run of 2^k values that ends with it. `waiting` has one entry per bit of the index. For exactly 2^n
// values, n entries are enough: the last value completes the sum of all (up to kUnrolledLevels).
template <int kLevels, class T, class Index>
__device__ __forceinline__ void carry(T (&waiting)[kLevels], T& v, Index index) {
  if constexpr (kLevels > kUnrolledLevels) {
    int level = 0;
#pragma unroll 1
    for (; index >> level & 1; ++level) v = waiting[level] + v;
    waiting[level] = v;
    return;
  }
  bool on = true;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if (on && (index >> level & 1)) {
      v = waiting[level] + v;
    } else if (on) {
      waiting[level] = v;
      on = false;
    }
  }
}

// Entries of `waiting` for `count` values, a power of two.
constexpr int levels_of(int count) { return count < 4 ? 1 : 1 + levels_of(count / 2); }

// Joins what carry() left in `waiting` after `count` values, fewer than 2^kLevels. Returns `none` if there were no values.
template <int kLevels, class T, class Index>
__device__ __forceinline__ T joined(T (&waiting)[kLevels], Index count, T none) {
  T v = none;
  bool any = false;
#pragma unroll kLevels> kUnrolledLevels ? 1 : kLevels
  for (int level = 0; level < kLevels; ++level) {
    if (!(count >> level & 1)) continue;
    v = any ? waiting[level] + v : waiting[level];
    any = true;
  }
  return v;
}

// `v` of the warp lane `lane`.
template <class T>
__device__ __forceinline__ T shuffle(T v, int lane) {
  return by_words([lane](uint32_t word) { return __shfl_sync(0xffffffffu, word, lane); }, v);
}

template <class T>
__device__ __forceinline__ T shuffle_xor(T v, int mask) {
  return by_words([mask](uint32_t word) { return __shfl_xor_sync(0xffffffffu, word, mask); }, v);
}

// Moves the lane sums of a row down by `shift` (less than V): bit by bit of `shift`, from kStep down. `threads` neighbours in a
// warp have the row, and each thread has kGroups runs of V lanes. The row's first sums move to its end. Where the next lanes
// belong to another warp, the sums in `beyond` move there instead. All threads of the warp must call it; a row has one shift.
template <int kGroups, int kStep, class Sums>
__device__ __forceinline__ void move_down(Sums* lanes, int shift, int threads = kWarp, Sums* beyond = nullptr) {
  using Sum = std::remove_reference_t<decltype(lanes->sum[0])>;
  constexpr int V = sizeof(lanes->sum) / sizeof(Sum);
  const int lane = threadIdx.x & (threads - 1), neighbour = threadIdx.x % kWarp - lane + ((lane + 1) & (threads - 1));
  Sum next[kGroups][kStep];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < kStep; ++j)
      next[g][j] = shuffle(choose(lane == 0, lanes[(g + 1) % kGroups].sum[j], lanes[g].sum[j]), neighbour);
  }
  if (beyond) {
#pragma unroll
    for (int j = 0; j < kStep; ++j) next[kGroups - 1][j] = choose(lane == threads - 1, beyond->sum[j], next[kGroups - 1][j]);
#pragma unroll
    for (int j = 0; j + kStep < V; ++j) beyond->sum[j] = choose(shift & kStep, beyond->sum[j + kStep], beyond->sum[j]);
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < V; ++j)
      lanes[g].sum[j] =
          choose(shift & kStep, j + kStep < V ? lanes[g].sum[(j + kStep) % V] : next[g][(j + kStep) % V], lanes[g].sum[j]);
  }
  // recursive, because a loop over steps of 16 lanes is not unrolled
  if constexpr (kStep > 1) move_down<kGroups, kStep / 2>(lanes, shift, threads, beyond);
}

// Joins values across a warp: groups of `from` neighbouring threads share a value before, groups of `to` do afterwards. Both
// are powers of two.
template <class Acc>
__device__ __forceinline__ Acc warp_join(Acc v, int from, int to) {
  for (int mask = from; mask < to; mask *= 2) v = v + shuffle_xor(v, mask);
  return v;
}

template <class Acc>
__device__ __forceinline__ Acc warp_join(Acc v) {
#pragma unroll
  for (int mask = 1; mask < kWarp; mask *= 2) v = v + shuffle_xor(v, mask);
  return v;
}

template <class T>
__device__ __forceinline__ void exchange_if(bool wanted, T& a, T& b) {
  const T first = choose(wanted, b, a);
  b = choose(wanted, a, b);
  a = first;
}

// Joins kCount values per thread (up to kWidth), each value across a group of kWidth neighbouring threads. While there are
// several values, two threads share the work: each keeps half of them and gives the other half away. At the end, thread i of a
// group has the result of value i % kCount.
template <int kCount, int kWidth = kWarp, int kMask = 1, class Acc>
__device__ __forceinline__ Acc warp_transpose_join(const Acc (&v)[kCount]) {
  if constexpr (kCount == 1) {
    return warp_join(v[0], kMask, kWidth);
  } else {
    const bool odd = threadIdx.x & kMask;
    Acc half[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      Acc keep = v[2 * i], give = v[2 * i + 1];
      exchange_if(odd, keep, give);
      half[i] = keep + shuffle_xor(give, kMask);
    }
    return warp_transpose_join<kCount / 2, kWidth, 2 * kMask>(half);
  }
}

// Joins kCount values per thread: each across the warp, then the kCount results.
template <int kCount, class Acc>
__device__ __forceinline__ Acc warp_join_groups(const Acc (&v)[kCount]) {
  return warp_join(warp_transpose_join(v), 1, kCount);
}

// Joins the values of groups of `width` neighbouring threads of the block (a power of two). Returns true in the first thread of
// each group, whose `v` is then the group's sum. `slots` has one entry per warp. Every thread of the block must call it, and
// may reuse `slots` after the next __syncthreads().
template <class Acc>
__device__ __forceinline__ bool block_join(Acc& v, int width, Acc* slots) {
  const int thread = threadIdx.x;
  const bool first = (thread & (width - 1)) == 0;
  v = warp_join(v, 1, width < kWarp ? width : kWarp);
  if (width <= kWarp) return first;
  if (thread % kWarp == 0) slots[thread / kWarp] = v;
  __syncthreads();
  const int warps = width / kWarp, lane = thread % kWarp;  // each warp joins the values of all warps of its group
  v = lane < warps ? slots[(thread / kWarp & -warps) + lane] : padding<Acc>();
  v = warp_join(v, 1, warps);
  return first;
}

}  // namespace gpureduce::cuda
