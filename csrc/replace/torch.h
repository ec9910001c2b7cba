// What the files that replace torch's functions share (torch.cpp, torch_indexed.cpp): torch's own kernels, the calls that
// ours take, and the table of functions.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "../core/torch/backend.h"
#include "../core/torch/dispatch.h"

namespace gpureduce::replacing {

using c10::DispatchKey;
using Keys = c10::DispatchKeySet;

// A kernel serves the CPU and CUDA. The dispatcher gives it the keys of a call, which say where it runs.
//
// Kernels are templates of `traced`: a compiler traces the call, and nothing runs. A traced call that is left to the original
// returns an undefined tensor, and the compiler continues as without us.
inline bool on_cuda(Keys keys) { return keys.has_backend(c10::BackendComponent::CUDABit); }

// torch's own kernels, by name, called without the dispatcher.
#ifdef GPUREDUCE_WITH_CUDA
#define GPUREDUCE_CALL(kernel)                \
  if (on_cuda(keys)) return at::cuda::kernel; \
  return at::cpu::kernel;
#else
#define GPUREDUCE_CALL(kernel) return at::cpu::kernel;
#endif
#define GPUREDUCE_ORIGINAL_WITHOUT_OUT(name)                          \
  template <bool traced, class... Args>                               \
  static auto call(Keys keys, const at::Tensor& self, Args... args) { \
    using Result = decltype(at::cpu::name(self, args...));            \
    if constexpr (traced) return Result();                            \
    else {                                                            \
      GPUREDUCE_CALL(name(self, args...))                             \
    }                                                                 \
  }
#define GPUREDUCE_ORIGINAL(name)                                                             \
  GPUREDUCE_ORIGINAL_WITHOUT_OUT(name)                                                       \
  template <class... Args>                                                                   \
  static at::Tensor& out(Keys keys, at::Tensor& out, const at::Tensor& self, Args... args) { \
    GPUREDUCE_CALL(name##_out(out, self, args...))                                           \
  }
// These can write to their first argument.
#define GPUREDUCE_ORIGINAL_INPLACE(name)                                          \
  template <class... Args>                                                        \
  static at::Tensor& in_place(Keys keys, at::Tensor& self, const Args&... args) { \
    GPUREDUCE_CALL(name##_(self, args...))                                        \
  }
// These have two results.
#define GPUREDUCE_ORIGINAL_PAIR(name)                                                                                       \
  GPUREDUCE_ORIGINAL_WITHOUT_OUT(name)                                                                                      \
  template <class... Args>                                                                                                  \
  static std::tuple<at::Tensor&, at::Tensor&> out(Keys keys, at::Tensor& first, at::Tensor& second, const at::Tensor& self, \
                                                  Args... args) {                                                           \
    GPUREDUCE_CALL(name##_out(first, second, self, args...))                                                                \
  }

// The dtypes that both libraries reduce. torch does not sum float8, so there is no result dtype that ours could take over.
inline bool is_common(at::ScalarType type) {
  return at::isIntegralType(type, /*includeBool=*/true) || at::isComplexType(type) || type == at::kDouble ||
         type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

inline bool is_wide_unsigned(at::ScalarType type) { return type == at::kUInt16 || type == at::kUInt32 || type == at::kUInt64; }

// True for the common dtypes that torch's kernel on a device can return.
inline bool is_result(at::ScalarType type, at::Device device) {
  return is_common(type) && !is_wide_unsigned(type) && (type != at::kComplexHalf || device.is_cuda());
}

// True if a tensor has named dims. Later versions of torch have none.
template <class Tensor>
auto has_names(const Tensor& tensor, int) -> decltype(tensor.has_names()) {
  return tensor.has_names();
}
template <class Tensor>
bool has_names(const Tensor&, long) {
  return false;
}

// False for data-dependent traced sizes.
inline bool is_empty(const at::Tensor& self) { return TORCH_GUARD_OR_FALSE(self.sym_numel().sym_eq(0)); }

// The keys of a call below everything that torch runs before its own kernels.
inline Keys below(Keys keys) { return Keys(on_cuda(keys) ? DispatchKey::CUDA : DispatchKey::CPU); }

// Calls our operator on a device, below everything that torch runs before its own kernels. A traced call uses the dispatcher.
template <bool traced, class Handle, class... Args>
auto call_ours(Keys keys, const Handle& handle, const Args&... args) {
  if constexpr (traced) return handle.call(args...);
  else return handle.redispatch(below(keys), args...);
}

// True for an out= that ours writes to as torch does.
inline bool is_plain_out(const at::Tensor& out, const at::Tensor& like, at::ScalarType dtype) {
  return out.scalar_type() == dtype && out.device() == like.device() && out.layout() == at::kStrided && !has_names(out, 0) &&
         at::has_internal_overlap(out) != at::MemOverlap::Yes;
}
inline at::Tensor& write(at::Tensor& out, const at::Tensor& found) {
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

// The destination of a function's kernels: aten's table for a device; or, for tracing, operators of our own with aten's
// schemas, which replace aten's in a compiler.
struct Table {
  torch::Library& library;
  DispatchKey device = DispatchKey::Undefined;  // for tracing
  torch::Library* above = nullptr;              // of the device's autograd
  std::vector<std::string> traced = {};         // the operators for tracing

  template <class Kernel, class Function>
  void impl(const std::string& name, Kernel kernel, Function* for_tracing) {
    impl_on_device(name, kernel);
    impl_traced(name, for_tracing);
  }

  // `kernel` is a TORCH_FN. It has no state, so that a call in another thread may go on while the kernel is removed. Kernels
  // that write to what they are given are of devices alone, since a traced graph has none left.
  template <class Kernel>
  void impl_on_device(const std::string& name, Kernel kernel) {
    if (device != DispatchKey::Undefined) library.impl(name.c_str(), kernel);
  }

  template <class Function>
  void impl_traced(const std::string& name, Function* function) {
    if (device != DispatchKey::Undefined) return;
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string overload = name.substr(std::min(dot + 1, name.size()));
    const auto aten =
        c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(), overload.c_str());
    library.def(aten.schema().cloneWithName("gpureduce::_traced_" + name.substr(0, dot), overload));
    composite(library, "_traced_" + name, function);
    traced.push_back(name);
  }

  // A kernel that calls differentiable operators, for a function that torch composes of others.
  template <class Kernel>
  void impl_composed(const char* name, Kernel kernel) {
    library.impl(name, kernel);
    above->impl(name, kernel);
  }
};

// --- functions ------------------------------------------------------------------------------------------------------------

using Register = void (*)(Table&);
using Functions = std::map<std::string, Register>;  // by the names that users give

// A row of Functions, of a function register_NAME(Table&).
#define GPUREDUCE_FUNCTION(name) {#name, register_##name},

// What adds by index.
Functions functions_by_index();

}  // namespace gpureduce::replacing
