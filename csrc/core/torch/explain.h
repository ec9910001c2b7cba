// For torch_reduce.explain: backends say what a call would launch, and launch nothing.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"

namespace gpureduce {

// What a thread's calls would launch, from explain_begin() to explain_end().
class Explanation {
 public:
  // gpu: the one that launches are described for, whatever device tensors are on; none: the tensors' own.
  explicit Explanation(std::optional<Device> gpu) : described_(gpu) {}

  void say(const std::string& lines) {
    if (!lines.empty()) lines_.push_back(lines);
  }
  std::string take();  // what has been said since the last time; equal neighbours once, with their number

  // The GPU of tensors on a device. Null: they are on the CPU.
  const Device* gpu(at::Device device) const;

  // Says a problem and what it launches. on_gpu(gpu): that in words. on_cpu(): computes it, but no part of a parallel_for is
  // run, only counted: `unit` is what one index of it is.
  template <class OnGpu, class OnCpu>
  void tell(at::Device device, const std::string& problem, const char* unit, OnGpu on_gpu, OnCpu on_cpu) {
    say(problem);
    unit_ = unit;
    if (const Device* const facts = gpu(device)) say(on_gpu(*facts));
    else on_cpu();
  }

  void say_parts(int64_t count, int64_t grain);  // of a parallel_for

 private:
  std::optional<Device> described_;
  std::vector<std::string> lines_;
  const char* unit_ = "part";
};

// How many threads explain something: calls of others ask no more than this.
extern std::atomic<int> explaining;

Explanation* explanation_of_thread();

// This thread's. Null: calls run.
inline Explanation* explanation() {
  return explaining.load(std::memory_order_relaxed) == 0 ? nullptr : explanation_of_thread();
}

// While it lives, this thread's calls run, although it explains one.
class Unexplained {
 public:
  Unexplained();
  ~Unexplained();
  Unexplained(const Unexplained&) = delete;

 private:
  std::unique_ptr<Explanation> held_;
};

// The GPU that runs the calls of tensors on a device, or that they are explained for. Null: they are on the CPU.
inline const Device* gpu_of(at::Device device) {
  if (const Explanation* const e = explanation()) return e->gpu(device);
#ifdef GPUREDUCE_WITH_CUDA
  if (device.is_cuda()) return &cuda::facts(device);
#endif
  return nullptr;
}

// Says what a reduction would launch, or launches it, or runs it on the CPU.
void run_on(at::Device device, const Reduction& reduction, const Tuning& tuning, void (*on_cpu)(const Reduction&));

}  // namespace gpureduce
