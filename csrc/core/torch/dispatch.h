// The dispatcher's handles of operators, and how operators are registered.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <string>

#include "../operation.h"

namespace gpureduce {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalDims = at::OptionalIntArrayRef;
using OptionalDtype = std::optional<at::ScalarType>;
using Functional = at::Tensor(const at::Tensor&, OptionalDims, bool, OptionalDtype);
using OutVariant = at::Tensor&(const at::Tensor&, OptionalDims, bool, OptionalDtype, at::Tensor&);

// An argument that may be missing, as schemas have it, and as an undefined tensor.
inline OptionalTensor optional(const at::Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; }
inline at::Tensor tensor_of(const OptionalTensor& x) { return x ? *x : at::Tensor(); }

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("gpureduce::") + name).c_str(), overload)
      .typed<Signature>();
}

// Defines function(): the handle of an operator, which is found once. The signature is last, as it may have commas.
#define GPUREDUCE_HANDLE(function, name, ...)           \
  inline const auto& function() {                       \
    static const auto handle = find<__VA_ARGS__>(name); \
    return handle;                                      \
  }

// The name of the operator that adds exactly (exact/torch.cpp): "exact_sum", and "_exact_norm_2" of "_norm_2", as internal
// operators begin with _.
inline std::string exact_name(const std::string& name) { return (name[0] == '_' ? "_exact" : "exact_") + name; }

// The function that an operator belongs to, as errors name it.
inline std::string function_name(std::string name) {
  if (name[0] == '_') name.erase(0, 1);
  if (name.rfind("exact_", 0) == 0) name.erase(0, 6);
  if (name.rfind("norm_", 0) == 0) return "linalg_vector_norm";
  return name.rfind("powsum_", 0) == 0 ? "linalg_powsum" : name;
}

// Throws the error again as one of the function of the operator `name` if it begins with the name of another operator, which
// the function called.
void rename(const c10::Error& error, const std::string& name);

// Checks the arguments of a Meta kernel one after the other. It serves every call with a meta tensor and writes no results, so
// it takes no tensor that has data: raises an error, in the words of the operator `name`, unless all are on one device.
class OneDevice {
 public:
  explicit OneDevice(const std::string& name) : name_(name) {}
  void check(const at::Tensor& x);
  void check(const OptionalTensor& x);
  void check(at::TensorList list);
  template <class Other>
  void check(const Other&) {}
  void next() { ++argument_; }

 private:
  const std::string& name_;
  size_t argument_ = 0, first_ = 0;  // indices in the schema; first_: of the first tensor
  std::optional<at::Device> device_;
};

// All operations, in the table's order.
constexpr Operation kOperations[] = {
#define GPUREDUCE_OPERATION(name, ...) Operation::name,
    GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
};

// Which operator of a family: its operation, and whether it adds exactly.
struct Which {
  Operation op = Operation::sum;
  bool exact = false;

  constexpr Which() = default;
  constexpr Which(Operation op, bool exact = false) : op(op), exact(exact) {}

  constexpr bool operator==(const Which& other) const { return op == other.op && exact == other.exact; }
  constexpr size_t number() const { return 2 * static_cast<size_t>(op) + exact; }
  static constexpr Which of(int64_t number) { return {static_cast<Operation>(number / 2), number % 2 == 1}; }
  static constexpr size_t kCount = 2 * std::size(kOperations);
};

// The handles of a family's operators. They are found together, at the first call.
template <class Signature>
class Handles {
 public:
  // name: an operator's; nullptr if there is none.
  Handles(const char* (*name)(Which), const char* overload) {
    for (size_t i = 0; i < Which::kCount; ++i)
      if (const char* const found = name(Which::of(i))) all_[i] = find<Signature>(found, overload);
  }
  const c10::TypedOperatorHandle<Signature>& operator[](Which which) const { return *all_[which.number()]; }

 private:
  std::array<std::optional<c10::TypedOperatorHandle<Signature>>, Which::kCount> all_;
};

// The name of an operator of the table; nullptr if an operation has no exact one.
inline const char* operator_name(Which which) {
  if (!which.exact) return name_of(which.op);
  if (!info(which.op).has_exact()) return nullptr;
  static const auto* const names = [] {
    auto* all = new std::array<std::string, std::size(kOperations)>;
    for (const Operation op : kOperations) (*all)[static_cast<size_t>(op)] = exact_name(name_of(op));
    return all;
  }();
  return (*names)[static_cast<size_t>(which.op)].c_str();
}

inline const c10::TypedOperatorHandle<Functional>& functional(Which which) {
  static const Handles<Functional> handles(operator_name, "");
  return handles[which];
}

inline const c10::TypedOperatorHandle<OutVariant>& out_variant(Which which) {
  static const Handles<OutVariant> handles(operator_name, "out");
  return handles[which];
}

// Operators that several files call.
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
GPUREDUCE_HANDLE(index_plan_operator, "_index_plan", TwoTensors(const at::Tensor&, c10::SymInt))
GPUREDUCE_HANDLE(weighted_sum_operator, "weighted_sum",
                 at::Tensor(const at::Tensor&, const at::Tensor&, OptionalDims, bool, OptionalDtype))
GPUREDUCE_HANDLE(var_mean_operator, "_var_mean", TwoTensors(const at::Tensor&, OptionalDims, double, bool, bool, OptionalDtype))
GPUREDUCE_HANDLE(argmax_operator, "argmax", at::Tensor(const at::Tensor&, OptionalDims, bool))
GPUREDUCE_HANDLE(argmin_operator, "argmin", at::Tensor(const at::Tensor&, OptionalDims, bool))
GPUREDUCE_HANDLE(max_operator, "max", TwoTensors(const at::Tensor&, int64_t, bool))
GPUREDUCE_HANDLE(min_operator, "min", TwoTensors(const at::Tensor&, int64_t, bool))
GPUREDUCE_HANDLE(aminmax_operator, "aminmax", TwoTensors(const at::Tensor&, std::optional<int64_t>, bool))

// --- registration -----------------------------------------------------------------------------------------------------------

// Kernels are pointers, not TORCH_FN: kernels of one type then share the code that unpacks torch's stack of arguments. Kernels
// that are removed again are TORCH_FN (replace/torch.h).

using Key = c10::DispatchKey;

void put_function(torch::Library& m, Key key, const std::string& name, torch::CppFunction&& function);

template <class Function>
void put(torch::Library& m, Key key, const std::string& name, Function function) {
  put_function(m, key, name, torch::CppFunction(std::move(function)));
}

// A kernel of all operators of a family: it is told which one is called.
template <class Function>
struct WhichKernel;

template <class Result, class... Args>
struct WhichKernel<Result(Args...)> {
  Which which;
  Result (*function)(Which, Args...);

  Result operator()(Args... args) const { return function(which, std::forward<Args>(args)...); }
};

template <class Result, class... Args>
WhichKernel<Result(Args...)> kernel_of(Which which, Result (*function)(Which, Args...)) {
  return {which, function};
}

template <class Function>
void put_on_backends(torch::Library& m, const std::string& name, Function function) {
  put(m, Key::CPU, name, function);
#ifdef GPUREDUCE_WITH_CUDA
  put(m, Key::CUDA, name, function);
#endif
}

// A kernel of an operator that calls others: its errors begin with the name of the operator's function.
template <class Function, class Kernel>
struct NamedKernel;

template <class Result, class... Args, class Kernel>
struct NamedKernel<Result(Args...), Kernel> {
  std::string name;
  Kernel function;
  bool meta;

  // noinline: torch makes two functions of a kernel, for boxed and for unboxed calls.
  [[gnu::noinline]] Result operator()(Args... args) const {
    try {
      OneDevice devices(name);
      if (meta) ((devices.check(args), devices.next()), ...);
      return function(std::forward<Args>(args)...);
    } catch (const c10::Error& error) {
      rename(error, name);
      throw;
    }
  }
};

template <class Function>
NamedKernel<Function, Function*> named_kernel(const std::string& name, Function* function, bool meta = false) {
  return {name, function, meta};
}
template <class Function>
NamedKernel<Function, WhichKernel<Function>> named_kernel(const std::string& name, WhichKernel<Function> function,
                                                          bool meta = false) {
  return {name, function, meta};
}

template <class Kernel>
void put_meta(torch::Library& m, const std::string& name, Kernel kernel) {
  put(m, Key::Meta, name, named_kernel(name, kernel, /*meta=*/true));
}

// Defines an operator without kernels, and returns its name.
inline std::string define_schema(torch::Library& m, const std::string& schema) {
  m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  return schema.substr(0, schema.find('('));
}

// Defines an operator that has a kernel of its own for each key. nullptr: torch's fallback serves it.
template <auto backends, auto meta, auto autograd = nullptr, auto batched = nullptr>
void define_operator(torch::Library& m, const std::string& schema) {
  const std::string name = define_schema(m, schema);
  put_on_backends(m, name, named_kernel(name, backends));
  put_meta(m, name, meta);
  if constexpr (autograd != nullptr) put(m, Key::Autograd, name, autograd);
  if constexpr (batched != nullptr) put(m, Key::FuncTorchBatched, name, batched);
}

// Registers a function that calls other operators; derivatives, batching and tracing are theirs. It also serves vmap, since
// torch would otherwise call it once per element of a batch.
template <class Function>
void composite(torch::Library& m, const std::string& name, Function function) {
  for (const Key key :
       {Key::CompositeImplicitAutograd, Key::CompositeImplicitAutogradNestedTensor, Key::FuncTorchBatchedDecomposition})
    put(m, key, name, function);
}

// Defines an operator that calls others.
template <class Function>
void define_composite(torch::Library& m, const std::string& schema, Function function) {
  const std::string name = define_schema(m, schema);
  composite(m, name, named_kernel(name, function));
}

// What stands between a schema's arguments and `out`, which is given by name alone.
inline const char* separator(const std::string& arguments) { return arguments.find('*') == std::string::npos ? ", *, " : ", "; }

// The same with an out variant. The result is one tensor. `arguments` has an opening parenthesis only.
template <class Function, class Out>
void define_composite(torch::Library& m, const std::string& name, const std::string& arguments, Function function, Out out) {
  define_composite(m, name + arguments + ") -> Tensor", std::move(function));
  define_composite(m, name + ".out" + arguments + separator(arguments) + "Tensor(a!) out) -> Tensor(a!)", std::move(out));
}

}  // namespace gpureduce
