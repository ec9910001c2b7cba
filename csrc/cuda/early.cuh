// Kernels that start before the one in front of them has ended.
#pragma once

namespace gpureduce::cuda {

// Lets the next kernel of the stream, if it asks for it, start while this one runs; and waits for the one before.
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
