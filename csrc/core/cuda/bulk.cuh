// Bulk copies from global to shared memory, which the copy engine does while threads compute. Need compute capability 9.0.
#pragma once

#include <cuda/ptx>

namespace gpureduce::cuda {

// One thread starts the copy of `bytes`, a multiple of 16 from and to such addresses; they count as arrived at the mbarrier
// `full`, which was told to expect them. `policy`: l2_policy() in launch.h. Not cuda::ptx::cp_async_bulk, which takes no
// policy.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* full, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(static_cast<uint32_t>(__cvta_generic_to_shared(full))), "l"(policy)
      : "memory");
}

// One thread tells `full` to expect `bytes` in its current phase.
__device__ __forceinline__ void expect_bytes(uint64_t* full, uint32_t bytes) {
  namespace ptx = ::cuda::ptx;
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full, bytes);
}

// Waits until a phase of `full` is over: 0 the first, 1 the second, 0 the third, ...
__device__ __forceinline__ void wait_for_bytes(uint64_t* full, uint32_t parity) {
#pragma unroll 1
  while (!::cuda::ptx::mbarrier_try_wait_parity(full, parity)) {
  }
}

}  // namespace gpureduce::cuda
