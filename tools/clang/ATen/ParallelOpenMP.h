// at::parallel_for for clang on Linux, in place of torch's header of this name. That one is written with `#pragma omp`, for
// which clang calls its own OpenMP (__kmpc_fork_call); torch brings GCC's, and two in a process would fight for the cores. So
// this one calls GCC's by the name under which every GCC since 4.9 calls it. Its tasks are those of torch's header.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

#define INTRA_OP_PARALLEL

extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);
int omp_get_num_threads();
int omp_get_thread_num();
}

namespace at::internal {

template <typename F>
inline void invoke_parallel(int64_t begin, int64_t end, int64_t grain_size, const F& f) {
  struct Region {
    int64_t begin, end, grain_size;
    const F& f;
    std::atomic_flag failed = ATOMIC_FLAG_INIT;
    std::exception_ptr error;
  } region{begin, end, grain_size, f};

  auto body = [](void* data) {
    auto& region = *static_cast<Region*>(data);
    int64_t threads = omp_get_num_threads();
    if (region.grain_size > 0) threads = std::min(threads, divup(region.end - region.begin, region.grain_size));
    const int64_t thread = omp_get_thread_num();
    const int64_t chunk = divup(region.end - region.begin, threads);
    const int64_t first = region.begin + thread * chunk;
    if (first >= region.end) return;
    try {
      ThreadIdGuard guard(thread);
      region.f(first, std::min(region.end, first + chunk));
    } catch (...) {
      if (!region.failed.test_and_set()) region.error = std::current_exception();
    }
  };
  GOMP_parallel(body, &region, 0, 0);
  if (region.error) std::rethrow_exception(region.error);
}

}  // namespace at::internal
