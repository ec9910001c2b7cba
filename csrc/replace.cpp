// torch's own reductions, computed by ours. While a replacement is on, the kernel that aten has for a device is one that calls
// our op. It stands below autograd, autocast and vmap, so these remain torch's. The dispatcher keeps a stack of kernels: taking
// ours off it again brings back exactly the original one.
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/sum_cpu_dispatch.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/ops/sum_cuda_dispatch.h>
#endif

#include <memory>
#include <mutex>

#include "backend.h"

namespace gpureduce {

namespace {

using c10::DispatchKey;

// What is replaced, and by what: the names, and torch's own kernels, which are called without the dispatcher.
struct Sum {
  static constexpr Operation operation = Operation::sum;
  static constexpr const char *aten = "sum.dim_IntList", *aten_out = "sum.IntList_out";

  template <DispatchKey key>
  static at::Tensor original(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
#ifdef GPUREDUCE_WITH_CUDA
    if constexpr (key == DispatchKey::CUDA) return at::cuda::sum(self, dim, keepdim, dtype);
#endif
    return at::cpu::sum(self, dim, keepdim, dtype);
  }

  template <DispatchKey key>
  static at::Tensor& original_out(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                                  at::Tensor& out) {
#ifdef GPUREDUCE_WITH_CUDA
    if constexpr (key == DispatchKey::CUDA) return at::cuda::sum_out(out, self, dim, keepdim, dtype);
#endif
    return at::cpu::sum_out(out, self, dim, keepdim, dtype);
  }
};

// The dtypes that both libraries sum. torch does not sum float8, so there is no result dtype that ours could take over.
bool is_common(at::ScalarType type) {
  return at::isIntegralType(type, /*includeBool=*/true) || at::isComplexType(type) || type == at::kDouble ||
         type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

// Those of them that are results of torch's kernel on a device.
template <DispatchKey key>
bool is_result(at::ScalarType type) {
  const bool is_wide_unsigned = type == at::kUInt16 || type == at::kUInt32 || type == at::kUInt64;
  return is_common(type) && !is_wide_unsigned && (type != at::kComplexHalf || key == DispatchKey::CUDA);
}

// Whether a tensor has named dims; later versions of torch have none.
template <class Tensor>
auto has_names(const Tensor& tensor, int) -> decltype(tensor.has_names()) {
  return tensor.has_names();
}
template <class Tensor>
bool has_names(const Tensor&, long) {
  return false;
}

// Everything else goes to the original kernel, which also raises the errors about it.
template <class Op, DispatchKey key>
bool is_taken(const at::Tensor& self, OptionalDtype dtype) {
  const at::ScalarType type = self.scalar_type();
  return is_common(type) && is_result<key>(result_type(Op::operation, type, dtype)) && !has_names(self, 0) &&
         self.dim() <= static_cast<int64_t>(at::dim_bitset_size);
}

template <class Op, DispatchKey key>
at::Tensor reduce(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  if (!is_taken<Op, key>(self, dtype)) return Op::template original<key>(self, dim, keepdim, dtype);
  return functional<Op::operation>().redispatch(c10::DispatchKeySet(key), self, dim, keepdim, dtype);
}

template <class Op, DispatchKey key>
at::Tensor& reduce_out(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype, at::Tensor& out) {
  const at::ScalarType result = out.scalar_type();
  if (!is_taken<Op, key>(self, result) || dtype.value_or(result) != result || has_names(out, 0) ||
      out.layout() != at::kStrided || out.device() != self.device() || at::has_internal_overlap(out) == at::MemOverlap::Yes)
    return Op::template original_out<key>(self, dim, keepdim, dtype, out);
  return out_variant<Op::operation>().redispatch(c10::DispatchKeySet(key), self, dim, keepdim, result, out);
}

// The kernels are plain functions. Taking them off the stack frees nothing that a call in another thread may still need.
template <class Op, DispatchKey key>
void kernels(torch::Library& library) {
  library.impl(Op::aten, TORCH_FN((reduce<Op, key>)));
  library.impl(Op::aten_out, TORCH_FN((reduce_out<Op, key>)));
}

// The dispatcher warns once in a process that one kernel covers another. Here that is the purpose.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// The replacement on one device. It is on while it was switched on more often than off.
class Replacement {
 public:
  Replacement(DispatchKey key, void (*kernels)(torch::Library&)) : key_(key), kernels_(kernels) {}

  void on() {
    if (count_++ > 0) return;
    try {
      install();
    } catch (...) {
      count_ = 0;
      throw;
    }
  }

  void off() {
    if (--count_ == 0) library_.reset();
  }

  int64_t count() const { return count_; }

 private:
  void install() {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key_, __FILE__, __LINE__);
    kernels_(*library);
    library_ = std::move(library);
  }

  DispatchKey key_;
  void (*kernels_)(torch::Library&);
  int64_t count_ = 0;
  std::unique_ptr<torch::Library> library_;
};

Replacement& replacement(const std::string& device) {
  static auto* cpu = new Replacement(DispatchKey::CPU, kernels<Sum, DispatchKey::CPU>);
  if (device == "cpu") return *cpu;
  TORCH_CHECK_VALUE(device == "cuda", "replace_torch_sum: devices are 'cuda' and 'cpu', not '", device, "'");
#ifdef GPUREDUCE_WITH_CUDA
  static auto* cuda = new Replacement(DispatchKey::CUDA, kernels<Sum, DispatchKey::CUDA>);
  return *cuda;
#else
  TORCH_CHECK(false, "replace_torch_sum: this library was built without CUDA; it can replace the sum of devices=\"cpu\"");
#endif
}

// Switches all devices, or none if one is refused.
void replace_torch_sum(bool on, const std::vector<std::string>& devices) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<Replacement*> chosen;
  for (const std::string& device : devices) {
    chosen.push_back(&replacement(device));
    for (size_t i = 0; i + 1 < chosen.size(); ++i)
      TORCH_CHECK_VALUE(chosen[i] != chosen.back(), "replace_torch_sum: devices names '", device, "' twice");
    TORCH_CHECK(on || chosen.back()->count() > 0, "replace_torch_sum: off() without on(), on device '", device, "'");
  }
  for (Replacement* one : chosen) on ? one->on() : one->off();
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  m.def("_replace_torch_sum(bool on, str[] devices) -> ()",
        [](bool on, std::vector<std::string> devices) { gpureduce::replace_torch_sum(on, devices); });
}
