// Kernels that need a workspace, on a GPU.
#pragma once

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "backend.h"

namespace gpureduce::cuda {

// Calls launch(workspace, stream), which returns an error code, with the current stream of `device`, which need not be the
// current device. The workspace is not initialised, and goes back to the stream's pool when the launches are queued.
template <class Launch>
void with_workspace(at::Device device, int64_t bytes, Launch launch) {
  const c10::cuda::CUDAGuard guard(device);
  const at::Tensor workspace(at::detail::empty_cuda({bytes}, at::kByte, device, std::nullopt));
  C10_CUDA_CHECK(launch(workspace.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream(device.index()).stream()));
}

}  // namespace gpureduce::cuda
#endif
