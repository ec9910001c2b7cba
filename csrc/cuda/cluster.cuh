// Blocks that join their sums without a second kernel: a cluster's, which run at a time, and write to each other's shared
// memory. They need compute capability 9.0.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

// All threads of a cluster that are left arrive; what a thread wrote before is there when others have waited. So a block
// arrives when it begins, and waits before it writes to others, which have begun then.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_wait();
#endif
}

// The same place in the shared memory of the cluster's block `rank`.
template <class T>
__device__ __forceinline__ T* in_block(T* shared, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(shared, rank));
#else
  return shared;
#endif
}

// The sum of a cluster's `blocks` values in a column of its memory, `pitch` apart.
template <class Acc>
__device__ __forceinline__ Acc join_blocks(const Acc* gathered, int blocks, int pitch) {
  Acc v[kMaxCluster];
#pragma unroll
  for (int b = 0; b < kMaxCluster; ++b) v[b] = b < blocks ? gathered[b * pitch] : padding<Acc>();
  return join_neighbours(v);
}

}  // namespace gpureduce::cuda
