// A warp's ring of stages in shared memory. Bulk copies fill stages while the warp reads those that have arrived, at any
// alignment. A stage that was read is filled anew at once. Needs compute capability 9.0.
//
// For example with two stages: thread 0 starts copies of tiles 0 and 1 into stages 0 and 1. The warp waits for stage 0 and
// reads tile 0. Then thread 0 starts the copy of tile 2 into stage 0, and the warp waits for stage 1.
#pragma once

#include "../args.cuh"
#include "../bulk.cuh"

namespace gpureduce::cuda {

template <int kUnit>
__device__ __forceinline__ int past(const char* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % kUnit);
}
template <int kUnit>
__device__ __forceinline__ const char* align_down(const char* p) {
  return p - past<kUnit>(p);
}

// All threads of the warp must call every function. Note: what the reader of a stage must know about it.
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
  static constexpr int kOverhead = sizeof(Note) + sizeof(uint64_t);  // bytes per stage besides its data

  // Fills the stage with the bytes from `begin` to `end`, as far beyond a line as in global memory. The copy takes whole
  // granules, so some bytes around these too, but none outside `input`. `policy`: l2_policy() in launch.h.
  __device__ __forceinline__ void fill_with(const Note& note, const char* begin, const char* end, const InputSpan& input,
                                            uint64_t policy) {
    __syncwarp();  // the whole warp has read it
    if (lane() != 0) return;
    const Copy c = whole_granules(begin, end, past<kLine>(begin), input);
    announce(note, c.size);
    if (c.size) bulk_copy(c.to, c.from, c.size, full_ + at_, policy);
  }

  // Waits for the stage, and returns its address. note() is its note.
  __device__ __forceinline__ const char* wait_until_full() const {
    wait_for_bytes(full_ + at_, parity_);
    return base_ + at_ * bytes_;
  }
  __device__ __forceinline__ const Note& note() const { return notes_[at_]; }

  // Moves on to the next stage, the oldest one. The first round only fills stages; waits begin with the second.
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
  // The stage is full when `bytes` have arrived.
  __device__ __forceinline__ void announce(const Note& note, uint32_t bytes) const {
    notes_[at_] = note;
    expect_bytes(full_ + at_, bytes);
  }
  // The copy that brings `begin` to `offset`. Bytes at the input's ends that fill no granule are copied at once, by this
  // thread.
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
  uint64_t* full_;  // one mbarrier per stage
  int stages_, bytes_;
  int at_ = 0;           // the current stage
  uint32_t parity_ = 1;  // of its wait: 0 after the first round
};

}  // namespace gpureduce::cuda
