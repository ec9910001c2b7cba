// The CUDA backend for the ops: a device's facts, its current stream, and memory for partial sums.
#include "backend.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <deque>
#include <mutex>

#include "../cuda/launch.h"
#include "../plan/choice.h"

namespace gpureduce::cuda {

std::string name_of(at::Device device) { return at::cuda::getDeviceProperties(device.index())->name; }

namespace {

// The user's own choice data for this GPU if there are any, otherwise the library's data for it or for the most similar GPU.
const Choice* choice_of(const std::string& name, const Device& device) {
  const std::string path = choice_path(name);
  try {
    if (const Choice* own = read_choice(path)) return own;
  } catch (const std::invalid_argument& e) {
    TORCH_WARN("torch_reduce: ", path, " is not used: ", e.what(), ". Run `python -m torch_reduce tune` again, or remove it.");
  }
  return &known_choice(name, device);
}

}  // namespace

const Device& facts(at::Device device) {
  struct Entry {
    std::once_flag asked;
    Device device;
  };
  static auto* const entries = new std::deque<Entry>(at::cuda::device_count());
  Entry& entry = entries->at(device.index());
  std::call_once(entry.asked, [&] {
    const c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(ask(entry.device));
    entry.device.choice = choice_of(name_of(device), entry.device);
  });
  return entry.device;
}

Plan plan(const Reduction& r, at::Device device, const Tuning& tuning) { return make_plan(r, facts(device), tuning); }

bool run(const Reduction& r, const Plan& p, at::Device device, const Tuning& tuning) {
  const c10::cuda::CUDAGuard guard(device);
  at::Tensor workspace;  // goes back to the stream's pool when the launches are queued
  if (p.workspace_bytes) workspace = at::empty({p.workspace_bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  void* partials = workspace.defined() ? workspace.data_ptr() : nullptr;
  const cudaError_t error = run({r, p, partials, facts(device).shared_bytes, c10::cuda::getCurrentCUDAStream(device.index())});
  if (p.cluster > 1 && (error == cudaErrorInvalidClusterSize || error == cudaErrorLaunchOutOfResources)) {
    // The cluster does not fit: a small GPU or MIG slice, or MPS leaves too few multiprocessors.
    (void)cudaGetLastError();
    Device without = facts(device);
    without.clusters = false;
    return run(r, make_plan(r, without, tuning), device, tuning);
  }
  if (error == kNoKernel) return false;
  C10_CUDA_CHECK(error);
  return true;
}

}  // namespace gpureduce::cuda
