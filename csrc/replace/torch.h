// What the files that replace torch's functions share (torch.cpp, torch_indexed.cpp): torch's own kernels, the calls that
// ours take, and the table of functions.
#pragma once

#include <ATen/CPUFunctions.h>
#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/CUDAFunctions.h>
#endif
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
inline bool on_cuda(Keys keys) { return keys.has_backend(c10::BackendComponent::CUDABit); }

// torch's own kernels for the CPU and CUDA, which are called without the dispatcher. They have the arguments of ours: torch
// calls them NAME, NAME_outf and NAME_, and adds _symint to a name where sizes may be symbols.
#ifdef GPUREDUCE_WITH_CUDA
#define GPUREDUCE_TORCH(name) at::cpu::name, at::cuda::name
#else
#define GPUREDUCE_TORCH(name) at::cpu::name, at::cpu::name
#endif

template <class Function>
Function* original(Keys keys, Function* cpu, Function* cuda) {
  return on_cuda(keys) ? cuda : cpu;
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

// A function of torch in one of its forms. Function has:
//
// takes        torch's arguments -> whether ours takes the call. Other calls go to the original, which also raises the errors
// ours<traced> (keys, torch's arguments) -> our result. traced: a compiler traces the call, and nothing runs
//
// A traced call that is left to the original returns an undefined tensor, and the compiler continues as without us.
template <class Function, class Takes = decltype(Function::takes)>
struct Form;

// What such a Function refuses on the CPU, as an index out of range, it refuses before anything is written: then torch raises
// its own error.
struct Refusing {};

template <class Function, class... Args>
struct Form<Function, bool(Args...)> {
  using Result = decltype(Function::template ours<false>(Keys(), std::declval<Args>()...));
  using Original = Result(Args...);

  template <Original* cpu, Original* cuda>
  static Result call(Keys keys, Args... args) {
    if (Function::takes(args...)) {
      if constexpr (std::is_base_of_v<Refusing, Function>) {
        try {
          return Function::template ours<false>(keys, args...);
        } catch (const c10::Error&) {
          if (on_cuda(keys)) throw;
        }
      } else {
        return Function::template ours<false>(keys, args...);
      }
    }
    return original(keys, cpu, cuda)(std::forward<Args>(args)...);
  }

  static Result traced(Keys keys, Args... args) {
    if (!Function::takes(args...)) return Result();
    return Function::template ours<true>(keys, args...);
  }
};

// The form with out=, of a Function whose results have the dtype result(). Ours are copied.
template <class Function, class Takes = decltype(Function::takes)>
struct Into;
template <class Function, class... Rest>
struct Into<Function, bool(const at::Tensor&, Rest...)> : Function {
  static bool takes(const at::Tensor& first, Rest... rest, at::Tensor& out) {
    return Function::takes(first, rest...) && is_plain_out(out, first, Function::result(first, rest...));
  }
  template <bool traced>
  static at::Tensor& ours(Keys keys, const at::Tensor& first, Rest... rest, at::Tensor& out) {
    return write(out, Function::template ours<traced>(keys, first, rest...));
  }
};

struct OfFirstDtype {
  template <class... Rest>
  static at::ScalarType result(const at::Tensor& first, const Rest&...) {
    return first.scalar_type();
  }
};

// The destination of a function's kernels: aten's table for a device; or, for tracing, operators of our own with aten's
// schemas, which replace aten's in a compiler.
class Table {
 public:
  explicit Table(torch::Library& library, DispatchKey device = DispatchKey::Undefined, torch::Library* above = nullptr)
      : device(device), library_(library), above_(above) {}

  const DispatchKey device;         // Undefined for tracing
  std::vector<std::string> traced;  // the operators for tracing

  template <class Function, typename Form<Function>::Original* cpu, typename Form<Function>::Original* cuda>
  void impl(const std::string& name) {
    impl_on_device<Function, cpu, cuda>(name);
    impl_traced<Function>(name);
  }

  // Kernels that write to what they are given are of devices alone, since a traced graph has none left.
  template <class Function, typename Form<Function>::Original* cpu, typename Form<Function>::Original* cuda>
  void impl_on_device(const std::string& name) {
    put_on_device(name, TORCH_FN((Form<Function>::template call<cpu, cuda>)));
  }

  // `kernel` is a TORCH_FN. It has no state, so that a call in another thread may go on while the kernel is removed.
  template <class Kernel>
  void put_on_device(const std::string& name, Kernel kernel) {
    if (device != DispatchKey::Undefined) put(library_, device, name, kernel);
  }

  template <class Function>
  void impl_traced(const std::string& name) {
    put_traced(name, Form<Function>::traced);
  }

  template <class Kernel>
  void put_traced(const std::string& name, Kernel* kernel) {
    if (device == DispatchKey::Undefined) composite(library_, define_traced(name), kernel);
  }

  // A kernel that calls differentiable operators, for a function that torch composes of others.
  template <class Kernel>
  void impl_composed(const char* name, Kernel kernel) {
    library_.impl(name, kernel);
    above_->impl(name, kernel);
  }

 private:
  // Defines our operator for an operator of aten, and returns its name.
  std::string define_traced(const std::string& name);

  torch::Library& library_;
  torch::Library* above_;  // of the device's autograd
};

// --- functions ------------------------------------------------------------------------------------------------------------

using Register = void (*)(Table&);
using Functions = std::map<std::string, Register>;  // by the names that users give

// What adds by index.
Functions functions_by_index();

}  // namespace gpureduce::replacing
