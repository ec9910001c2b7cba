// Programmatic dependent launch: kernels that start before the previous kernel has ended.
#pragma once

namespace gpureduce::cuda {

// allow_next_kernel() lets the stream's next kernel start while this one runs, if its launch asks for that.
// wait_for_previous_kernel() waits until the previous kernel has ended.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

}  // namespace gpureduce::cuda
