// A kernel that does nothing: what launching takes on the host, whatever is launched.
#include <chrono>

#include <cuda_runtime.h>

namespace {

struct Arguments { char bytes[512]; };  // at least as many as a sum has

__global__ void empty() {}
__global__ void empty_with(const __grid_constant__ Arguments) {}

}  // namespace

extern "C" {

// Microseconds a launch, on average of `calls` in a row. early: it may start while the kernel before drains, as a sum's may.
// arguments: it has 512 bytes of them.
int bench_launch_empty(int early, int arguments, int calls, void* stream, double* us) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(128);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = early;
  const Arguments given = {};
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i)
    if (cudaError_t error = arguments ? cudaLaunchKernelEx(&config, empty_with, given) : cudaLaunchKernelEx(&config, empty))
      return error;
  *us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / calls;
  return cudaSuccess;
}

}  // extern "C"
