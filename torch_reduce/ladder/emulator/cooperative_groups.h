// cooperative_groups of CUDA, as far as reductions use it, for emulated kernels: the block, and tiles of up to 32 threads.
//
// A block of 64 has four tiles of 16: thread 37 is in tile 37 / 16 = 2 (meta_group_rank), where its rank is 37 % 16 = 5.
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

class thread_block {
 public:
  void sync(int line = __builtin_LINE()) const { ::emulate::block_barrier(line); }
  unsigned thread_rank() const { return ::emulate::thread(); }
  unsigned size() const { return ::emulate::threads(); }
  unsigned num_threads() const { return size(); }
  dim3 thread_index() const { return threadIdx; }
  dim3 group_index() const { return blockIdx; }
  dim3 dim_threads() const { return blockDim; }
  dim3 group_dim() const { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

// Part of a warp: a power of two of threads, of which the first one's rank in the block is a multiple.
class thread_group {
 public:
  explicit thread_group(unsigned width) : width(width) {}
  unsigned size() const { return std::min(width, ::emulate::threads() - (::emulate::thread() - thread_rank())); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return ::emulate::lane() % width; }
  void sync(int line = __builtin_LINE()) const { ::emulate::warp_barrier(mask(), line); }

 protected:
  unsigned first() const { return ::emulate::lane() / width * width; }
  unsigned mask() const { return static_cast<unsigned>((1ull << width) - 1) << first(); }
  unsigned width;
};

template <unsigned kSize, class Parent = void>
class thread_block_tile : public thread_group {
  static_assert(kSize >= 1 && kSize <= 32 && (kSize & (kSize - 1)) == 0, "a tile has a power of two of threads, at most 32");

 public:
  thread_block_tile() : thread_group(kSize) {}
  template <class Other>
  thread_block_tile(const thread_block_tile<kSize, Other>&) : thread_group(kSize) {}
  unsigned meta_group_rank() const { return ::emulate::thread() / kSize; }
  unsigned meta_group_size() const { return (::emulate::threads() + kSize - 1) / kSize; }
  template <class T>
  T shfl(T value, int from, int line = __builtin_LINE()) const {
    return ::emulate::shuffle_from(line, mask(), value, from, kSize);
  }
  template <class T>
  T shfl_down(T value, unsigned delta, int line = __builtin_LINE()) const {
    return ::emulate::shuffle_down(line, mask(), value, delta, kSize);
  }
  template <class T>
  T shfl_up(T value, unsigned delta, int line = __builtin_LINE()) const {
    return ::emulate::shuffle_up(line, mask(), value, delta, kSize);
  }
  template <class T>
  T shfl_xor(T value, unsigned lanes, int line = __builtin_LINE()) const {
    return ::emulate::shuffle_xor(line, mask(), value, static_cast<int>(lanes), kSize);
  }
  unsigned ballot(int value, int line = __builtin_LINE()) const { return ::emulate::ballot(line, mask(), value) >> first(); }
  bool any(int value, int line = __builtin_LINE()) const { return ballot(value, line) != 0; }
  bool all(int value, int line = __builtin_LINE()) const { return ballot(!value, line) == 0; }
};

template <unsigned kSize>
thread_block_tile<kSize, thread_block> tiled_partition(const thread_block&) {
  return {};
}
template <unsigned kSize, unsigned kOuter, class Parent>
thread_block_tile<kSize, thread_block_tile<kOuter, Parent>> tiled_partition(const thread_block_tile<kOuter, Parent>&) {
  static_assert(kSize <= kOuter, "a tile is cut into smaller ones");
  return {};
}
inline thread_group tiled_partition(const thread_block&, unsigned size) { return thread_group(size); }

template <class Group>
void sync(const Group& group, int line = __builtin_LINE()) {
  group.sync(line);
}

template <class T = void>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <class T = void>
struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T = void>
struct less {
  T operator()(T a, T b) const { return b < a ? b : a; }
};

// Of a tile: each thread joins its value with the one half a tile away, then a quarter away, and so on.
template <unsigned kSize, class Parent, class T, class F>
T reduce(const thread_block_tile<kSize, Parent>& tile, T value, F f, int line = __builtin_LINE()) {
  for (unsigned lanes = kSize / 2; lanes > 0; lanes /= 2) value = f(value, tile.shfl_xor(value, lanes, line));
  return value;
}

}  // namespace cooperative_groups
