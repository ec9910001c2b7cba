// The CUDA backend as the op sees it: the device's facts, its current stream, and memory for the partial sums.
#include "../backend.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "launch.h"

namespace gpureduce::cuda {

namespace {

int capability(const cudaDeviceProp& properties) { return 10 * properties.major + properties.minor; }

Plan plan_on(const Reduction& r, const cudaDeviceProp& properties, const Tuning& tuning) {
  return make_plan(r, {properties.multiProcessorCount, properties.l2CacheSize, runs_hopper_code(capability(properties))},
                   tuning);
}

}  // namespace

Plan plan(const Reduction& r, at::Device device, const Tuning& tuning) {
  return plan_on(r, *at::cuda::getDeviceProperties(device.index()), tuning);
}

void run(const Reduction& r, at::Device device, const Tuning& tuning) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device.index());
  const Plan p = plan_on(r, properties, tuning);
  at::Tensor workspace;  // goes back to the stream's pool when the launches are queued
  if (p.workspace_bytes) workspace = at::empty({p.workspace_bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  void* partials = workspace.defined() ? workspace.data_ptr() : nullptr;
  const Launch launch{r, p, partials, c10::cuda::getCurrentCUDAStream(device.index()), capability(properties)};
  const cudaError_t error = run(launch);
  if (p.cluster > 1 && (error == cudaErrorInvalidClusterSize || error == cudaErrorLaunchOutOfResources)) {
    // Too few multiprocessors side by side for so many blocks: a small GPU or a part of one, or what MPS leaves of it.
    (void)cudaGetLastError();
    Tuning alone = tuning;
    alone.cluster = 1;
    return run(r, device, alone);
  }
  C10_CUDA_CHECK(error);
}

}  // namespace gpureduce::cuda
