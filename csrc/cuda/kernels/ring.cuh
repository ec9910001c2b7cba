// A warp's ring of stages in shared memory. The bulk copy engine fills them while the warp reads what has arrived, at any
// alignment; what it has read it has filled anew at once. Needs compute capability 9.0.
#pragma once

#include <cuda/ptx>

#include "../args.cuh"

namespace gpureduce::cuda {

template <int kUnit>
__device__ __forceinline__ int past(const char* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % kUnit);
}
template <int kUnit>
__device__ __forceinline__ const char* align_down(const char* p) {
  return p - past<kUnit>(p);
}

// Every lane of the warp calls every function. Note is what is to be known of a stage when it is read.
template <class Note>
class Ring {
 public:
  // `memory`: the block's dynamic shared memory.
  __device__ __forceinline__ Ring(char* memory, const RingPlan& shape) : stages_(shape.stages), bytes_(shape.stage_bytes) {
    namespace ptx = ::cuda::ptx;
    const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp;
    base_ = memory + warp * stages_ * bytes_;
    char* const behind = memory + warps * stages_ * bytes_;
    notes_ = reinterpret_cast<Note*>(behind) + warp * stages_;
    full_ = reinterpret_cast<uint64_t*>(behind + warps * stages_ * sizeof(Note)) + warp * stages_;
    if (lane() == 0)
      for (int s = 0; s < stages_; ++s) ptx::mbarrier_init(full_ + s, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    __syncwarp();
  }
  static constexpr int kOverhead = sizeof(Note) + sizeof(uint64_t);  // bytes of a stage besides its own

  // Has the stage filled with the bytes from `begin` to `end`, as far past a line as in global memory. A copy takes whole
  // granules, so more than these bytes, but none outside of `input`. `policy`: l2_policy() in launch.h.
  __device__ __forceinline__ void fill_with(const Note& note, const char* begin, const char* end, const InputSpan& input,
                                            uint64_t policy) {
    __syncwarp();  // it has been read
    if (lane() != 0) return;
    const Copy c = whole_granules(begin, end, past<kLine>(begin), input);
    announce(note, c.size);
    if (c.size) copy(c, policy);
  }

  // Waits for the stage. Its address; note() is what was said of it.
  __device__ __forceinline__ const char* wait_until_full() const {
    while (!::cuda::ptx::mbarrier_try_wait_parity(full_ + at_, parity_)) {
    }
    return base_ + at_ * bytes_;
  }
  __device__ __forceinline__ const Note& note() const { return notes_[at_]; }

  // On to the next stage, the oldest one. Before the first round of waits there is one of filling.
  __device__ __forceinline__ void next() {
    if (++at_ == stages_) {
      at_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  struct Copy {
    char* to;
    const char* from;
    uint32_t size;
  };

  static __device__ __forceinline__ int lane() { return threadIdx.x % kWarp; }
  // Not cuda::ptx::cp_async_bulk, which takes no policy.
  __device__ __forceinline__ void copy(const Copy& c, uint64_t policy) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            static_cast<uint32_t>(__cvta_generic_to_shared(c.to))),
        "l"(__cvta_generic_to_global(c.from)), "r"(c.size), "r"(static_cast<uint32_t>(__cvta_generic_to_shared(full_ + at_))),
        "l"(policy)
        : "memory");
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
  uint64_t* full_;  // a barrier a stage
  int stages_, bytes_;
  int at_ = 0;           // stage
  uint32_t parity_ = 1;  // of its wait: 0 after the first round
};

}  // namespace gpureduce::cuda
