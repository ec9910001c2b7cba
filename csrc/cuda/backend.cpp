// The CUDA backend as the op sees it: the device's facts, its current stream, and memory for the partial sums.
#include "../backend.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "launch.h"

namespace gpureduce::cuda {

Plan plan(const Reduction& r, at::Device device, const Tuning& tuning) {
  Device facts;
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(device.index());
  facts.multiprocessors = properties->multiProcessorCount;
  facts.bulk_copies = runs_hopper_code(10 * properties->major + properties->minor);
  return make_plan(r, facts, tuning);
}

void run(const Reduction& r, at::Device device, const Tuning& tuning) {
  const c10::cuda::CUDAGuard guard(device);
  const Plan p = plan(r, device, tuning);
  at::Tensor workspace;  // goes back to the stream's pool when the launches are queued
  if (p.workspace_bytes) workspace = at::empty({p.workspace_bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  void* partials = workspace.defined() ? workspace.data_ptr() : nullptr;
  const cudaDeviceProp* facts = at::cuda::getDeviceProperties(device.index());
  const int capability = 10 * facts->major + facts->minor;
  C10_CUDA_CHECK(run(Launch{r, p, partials, c10::cuda::getCurrentCUDAStream(device.index()), capability}));
}

}  // namespace gpureduce::cuda
