// The blocks of a cluster join their sums without a second kernel: they are resident together and write to each other's shared
// memory. Needs compute capability 9.0.
#pragma once

#include <cuda/ptx>

#include "../args.cuh"

namespace gpureduce::cuda {

// A block's receive buffer in its shared memory, with an mbarrier that counts the bytes that arrive. The mbarrier orders the
// values, so neither side needs a fence, nor a second barrier of the whole cluster, which would take longer.
template <class Acc>
struct Inbox {
  uint64_t* arrived;
  Acc* values;

  // Opens the inbox for `count` values. All threads of all blocks must call it when they begin.
  __device__ __forceinline__ void open(int count) const {
#if __CUDA_ARCH__ >= 900
    namespace ptx = ::cuda::ptx;
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(arrived, 1);
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, arrived, count * sizeof(Acc));
    }
    __cluster_barrier_arrive_relaxed();
#endif
  }

  // Waits until all blocks have opened their inboxes. Whole warps must call it before one of their threads sends.
  __device__ __forceinline__ void wait_for_others() const {
#if __CUDA_ARCH__ >= 900
    __cluster_barrier_wait();
#endif
  }

  // Sends a value to values[index] of the block `rank`.
  __device__ __forceinline__ void send(uint32_t rank, int index, Acc value) const {
#if __CUDA_ARCH__ >= 900
    using Word = std::conditional_t<sizeof(Acc) % 8 == 0, uint64_t, uint32_t>;
    Word words[sizeof(Acc) / sizeof(Word)];
    memcpy(words, &value, sizeof(Acc));
    Word* const to = static_cast<Word*>(__cluster_map_shared_rank(values + index, rank));
    uint64_t* const barrier = static_cast<uint64_t*>(__cluster_map_shared_rank(arrived, rank));
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(Acc) / sizeof(Word)); ++w) ::cuda::ptx::st_async(to + w, words[w], barrier);
#endif
  }

  // Waits for all values.
  __device__ __forceinline__ void wait() const {
#if __CUDA_ARCH__ >= 900
    namespace ptx = ::cuda::ptx;
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, arrived, 0)) {
    }
#endif
  }

  // Joins the values of `blocks` blocks.
  __device__ __forceinline__ Acc join(int blocks) const {
    Acc v[kMaxCluster];
#pragma unroll
    for (int b = 0; b < kMaxCluster; ++b) v[b] = b < blocks ? values[b] : padding<Acc>();
    return join_neighbours(v);
  }
};

}  // namespace gpureduce::cuda
