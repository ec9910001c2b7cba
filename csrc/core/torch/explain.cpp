#include "explain.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/library.h>

namespace gpureduce {

std::atomic<int> explaining{0};

namespace {

std::unique_ptr<Explanation>& own_explanation() {
  static thread_local std::unique_ptr<Explanation> own;
  return own;
}

void explain_begin(const std::string& gpu) {
  TORCH_CHECK(!own_explanation(), "_explain_begin: this thread explains a call already");
  own_explanation() = std::make_unique<Explanation>(gpu.empty() ? std::nullopt : std::optional<Device>(Device::parse(gpu)));
  ++explaining;
}

std::string explain_take() { return own_explanation() ? own_explanation()->take() : std::string(); }

void explain_end() {
  if (!own_explanation()) return;
  own_explanation().reset();
  --explaining;
}

}  // namespace

Explanation* explanation_of_thread() { return own_explanation().get(); }

Unexplained::Unexplained() {
  if (explanation()) held_ = std::move(own_explanation());
}
Unexplained::~Unexplained() {
  if (held_) own_explanation() = std::move(held_);
}

std::string Explanation::take() {
  std::string text;
  for (size_t i = 0; i < lines_.size();) {
    size_t next = i + 1;
    while (next < lines_.size() && lines_[next] == lines_[i]) ++next;
    if (!text.empty()) text += '\n';
    text += lines_[i];
    if (next - i > 1) text += " (" + std::to_string(next - i) + " times)";
    i = next;
  }
  lines_.clear();
  return text;
}

const Device* Explanation::gpu(at::Device device) const {
  if (described_) return &*described_;
#ifdef GPUREDUCE_WITH_CUDA
  if (device.is_cuda()) return &cuda::facts(device);
#endif
  return nullptr;
}

void Explanation::say_parts(int64_t count, int64_t grain) {
  // As at::parallel_for cuts them.
  const int64_t most = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t threads = std::max<int64_t>(1, std::min(most, (count + grain - 1) / std::max<int64_t>(grain, 1)));
  const int64_t each = (count + threads - 1) / threads;
  say("cpu, " + at::get_cpu_capability() + ": " + std::to_string(count) + " " + unit_ + (count == 1 ? "" : "s") + " on " +
      std::to_string(threads) + (threads == 1 ? " thread" : " threads") +
      (threads == 1 ? "" : ", up to " + std::to_string(each) + " each"));
}

}  // namespace gpureduce

// What begins with _explain_ is for torch_reduce/_explain.py.
TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  m.def("_explain_begin(str gpu) -> ()", &gpureduce::explain_begin);
  m.def("_explain_take() -> str", &gpureduce::explain_take);
  m.def("_explain_end() -> ()", &gpureduce::explain_end);
}
