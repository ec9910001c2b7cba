// A device-side assertion that all ranks are about to do the same. If it fails, no later kernel runs. Among these are messages
// whose sizes the ranks disagree about: they would wait forever.
#include "expect_agreement.h"

#include <algorithm>

#include "agreement.h"

// As in glibc's <assert.h>, which omits it if NDEBUG is defined. The device prints its arguments.
extern "C" __host__ __device__ void __assert_fail(const char* assertion, const char* file, unsigned int line,
                                                  const char* function) noexcept __attribute__((__noreturn__));

namespace gpureduce::cuda {

namespace {

__global__ void expect(const int64_t* notices, int64_t ranks, const int64_t* mine, int64_t* report) {
  const int64_t thread = threadIdx.x, threads = blockDim.x;
  bool differs = false;
  for (int64_t rank = thread; rank < ranks; rank += threads) differs |= !agree(notices + rank * kNoticeWords, mine);
  if (!__syncthreads_or(differs)) return;
  for (int64_t i = thread; i < ranks * kNoticeWords; i += threads) report[1 + i] = notices[i];
  __threadfence_system();  // the host reads the notices once it sees the 1
  __syncthreads();
  if (thread > 0) return;
  *static_cast<volatile int64_t*>(report) = 1;
  __threadfence_system();
  char text[kDifferenceRoom];
  describe_difference(notices, ranks, mine, text);
  __assert_fail(text, "csrc/ranks/expect_agreement.cu", __LINE__, "expect");
}

}  // namespace

cudaError_t expect_agreement(const int64_t* notices, int64_t ranks, const int64_t* mine, int64_t* report, cudaStream_t stream) {
  const int threads = static_cast<int>(std::min<int64_t>(256, (ranks + 31) / 32 * 32));
  expect<<<1, threads, 0, stream>>>(notices, ranks, mine, report);
  return cudaGetLastError();
}

}  // namespace gpureduce::cuda
