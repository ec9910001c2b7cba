// A ring of stages in shared memory between two warps. One only asks the bulk copy engine to fill stages, far ahead; the other
// only reads what has arrived, at any alignment. So memory stays busy whatever the reading warp does. Needs compute
// capability 9.0.
#pragma once

#include <cuda/ptx>

#include "args.cuh"

namespace gpureduce::cuda {

template <int kUnit>
__device__ __forceinline__ int past(const char* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % kUnit);
}
template <int kUnit>
__device__ __forceinline__ const char* align_down(const char* p) {
  return p - past<kUnit>(p);
}

// Elements in shared memory as a thread reads them: a word at any address.
template <class Element>
struct Staged {
  static_assert(sizeof(Element) <= 4);
  static constexpr int V = 4 / sizeof(Element);
  using Read = Vector<Element, V>;

  static __device__ __forceinline__ Read read(const char* p) {
    const auto address = reinterpret_cast<uintptr_t>(p);
    const auto* words = reinterpret_cast<const uint32_t*>(p - address % 4);
    return {__funnelshift_r(words[0], words[1], static_cast<int>(address % 4) * 8)};
  }
};

// The ring of a pair of warps: of a block's 2 * n warps the first n read, and warp n + i fills for warp i. Every lane calls
// every function. Note is what the filling warp tells the reading one of a stage.
template <class Note>
class Ring {
 public:
  // `memory`: the block's dynamic shared memory. Every thread of the block must call it.
  __device__ __forceinline__ Ring(char* memory, const RingShape& shape) : stages_(shape.stages), bytes_(shape.stage_bytes) {
    namespace ptx = ::cuda::ptx;
    const int pairs = blockDim.x / kWarp / 2, warp = threadIdx.x / kWarp, pair = warp % pairs;
    fills_ = warp >= pairs;
    base_ = memory + pair * stages_ * bytes_;
    char* const behind = memory + pairs * stages_ * bytes_;
    notes_ = reinterpret_cast<Note*>(behind) + pair * stages_;
    full_ = reinterpret_cast<uint64_t*>(behind + pairs * stages_ * sizeof(Note)) + pair * 2 * stages_;
    if (!fills_ && lane() < 2 * stages_) ptx::mbarrier_init(full_ + lane(), 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    __syncthreads();
  }
  static constexpr int overhead(int pairs, int stages) {
    return pairs * stages * static_cast<int>(sizeof(Note) + 2 * sizeof(uint64_t));
  }

  __device__ __forceinline__ bool fills() const { return fills_; }
  // The pairs of the grid are numbered block by block, so that neighbouring blocks take neighbouring tiles.
  __device__ __forceinline__ uint32_t number() const {
    return blockIdx.x + threadIdx.x / kWarp % (blockDim.x / kWarp / 2) * gridDim.x;
  }
  static __device__ __forceinline__ uint32_t pairs() { return gridDim.x * (blockDim.x / kWarp / 2); }

  // --- the filling warp: wait_until_free(), then fill_with() ---

  __device__ __forceinline__ void wait_until_free() const { wait(full_ + stages_ + at_, parity_ ^ 1); }

  // Fills the stage with the bytes from `begin` to `end`, as far past a line as in global memory. A copy takes whole granules,
  // so more than these bytes, but none outside of `input`.
  __device__ __forceinline__ void fill_with(const Note& note, const char* begin, const char* end, const InputSpan& input) {
    if (lane() == 0) {
      const Copy c = whole_granules(begin, end, past<kLine>(begin), input);
      announce(note, c.size);
      if (c.size) copy(c);
    }
    next();
  }

  // --- the reading warp ---

  // Waits for the oldest stage. Its address; note() is what was said of it.
  __device__ __forceinline__ const char* wait_until_full() const {
    wait(full_ + at_, parity_);
    return base_ + at_ * bytes_;
  }
  __device__ __forceinline__ const Note& note() const { return notes_[at_]; }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane() == 0) ::cuda::ptx::mbarrier_arrive(full_ + stages_ + at_);
    next();
  }

 private:
  struct Copy {
    char* to;
    const char* from;
    uint32_t size;
  };

  static __device__ __forceinline__ int lane() { return threadIdx.x % kWarp; }
  static __device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) {
    }
  }
  __device__ __forceinline__ void next() {
    if (++at_ == stages_) {
      at_ = 0;
      parity_ ^= 1;
    }
  }
  __device__ __forceinline__ void copy(const Copy& c) const {
    namespace ptx = ::cuda::ptx;
    // The next call's wait orders this after the reading warp's last read of the stage.
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, c.to, c.from, c.size, full_ + at_);
  }
  // `bytes` are to arrive before the stage is full.
  __device__ __forceinline__ void announce(const Note& note, uint32_t bytes) const {
    namespace ptx = ::cuda::ptx;
    notes_[at_] = note;
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full_ + at_, bytes);
  }
  // The copy that brings `begin` to `offset`. What no whole granule within `input` holds comes at once, by the lane itself.
  __device__ __forceinline__ Copy whole_granules(const char* begin, const char* end, int offset, const InputSpan& input) const {
    const char* from = align_down<kGranule>(begin);
    const char* last = align_down<kGranule>(end + kGranule - 1);
    char* to = base_ + at_ * bytes_ + offset - (begin - from);
    if (begin < end && (from < input.begin || last > input.end)) {
      const char* first_whole = align_down<kGranule>(input.begin + kGranule - 1);
      const char* last_whole = align_down<kGranule>(input.end);
      for (const char* p = begin; p < end && p < first_whole; ++p) to[p - from] = *p;
      for (const char* p = begin < last_whole ? last_whole : begin; p < end; ++p) to[p - from] = *p;
      if (from < first_whole) {
        to += first_whole - from;
        from = first_whole;
      }
      if (last > last_whole) last = last_whole;
    }
    return {to, from, begin < end && from < last ? static_cast<uint32_t>(last - from) : 0};
  }

  char* base_;
  Note* notes_;
  uint64_t* full_;  // a barrier a stage; behind them the same for free
  int stages_, bytes_;
  bool fills_;
  int at_ = 0;  // stage
  uint32_t parity_ = 0;
};

}  // namespace gpureduce::cuda
