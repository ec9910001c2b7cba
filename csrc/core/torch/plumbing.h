// What torch asks of a reduction besides its results, written once for all families: out=, meta tensors, functionalization,
// autocast, lazily conjugated views, forced plans, and refusals of layouts. A family is described by a struct. It is empty if
// the family has one operator. Otherwise its one member is the Which of an operator:
//
// name()           the operator's name
// kArguments       its schema's arguments without the closing parenthesis; the last one is dtype=, if there is one
// Function         its C++ type, Result(self, ..., dtype). A Result is a tensor, or a tuple of tensors of one size and dtype
// check<Int>       (arguments, out) -> a call, after all checks that read no elements: its `sizes` and `dtype` are the
//                  result's. Int is int64_t, or c10::SymInt for meta tensors. `out` is nullptr if the result is new
// compute          (call, arguments, result, tuning): writes the result
//
// A family that has an out variant has also:
//
// refuse           (call, arguments): raises compute()'s errors, for an `out` that must be resized before
// out_has_dtype()  true if the dtype of `out` serves as dtype=
// has_gradient()   true if results may have gradients
// autocasts        (device type) -> true if torch.autocast makes results float32
//
// Gradients (gradient.h) and vmap (batch.h) differ from family to family, which registers them itself.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <string>
#include <tuple>

#include "results.h"

namespace gpureduce {

// For what no plain call runs through: it is built for size in files that are built for speed, too.
#define GPUREDUCE_SMALL [[gnu::cold]]

template <class Int>
using SizesOf = c10::SmallVector<Int, kCommonRank>;

template <class Int>
at::ArrayRef<Int> sizes_of(const at::Tensor& x) {
  if constexpr (std::is_same_v<Int, int64_t>) return x.sizes();
  else return x.sym_sizes();
}

// --- arguments of a call ----------------------------------------------------------------------------------------------------

template <class... More>
const at::Tensor& first_of(const at::Tensor& self, const More&...) {
  return self;
}

// True if `test` is true of any argument that is a tensor.
template <class Test, class... Args>
bool any_tensor(Test test, const Args&... args) {
  const auto one = [&](const auto& x) {
    if constexpr (std::is_same_v<std::decay_t<decltype(x)>, at::Tensor>) return test(x);
    else if constexpr (std::is_same_v<std::decay_t<decltype(x)>, OptionalTensor>) return x && test(*x);
    else return false;
  };
  return (... || one(args));
}

// An argument as it is, but for dtype=.
template <class T>
const T& with_dtype(const T& x, OptionalDtype) {
  return x;
}
inline OptionalDtype with_dtype(const OptionalDtype&, OptionalDtype dtype) { return dtype; }

// The argument dtype=, if the last one is that.
template <class T>
OptionalDtype dtype_in(const T&) {
  return {};
}
inline OptionalDtype dtype_in(const OptionalDtype& dtype) { return dtype; }

// An argument below functionalization.
template <class T>
const T& functionless(const T& x) {
  return x;
}
inline at::Tensor functionless(const at::Tensor& x) {
  namespace functionalization = at::functionalization::impl;
  if (!functionalization::isFunctionalTensor(x)) return x;
  functionalization::sync(x);
  return functionalization::from_functional_tensor(x);
}
inline OptionalTensor functionless(const OptionalTensor& x) { return x ? OptionalTensor(functionless(*x)) : std::nullopt; }

// Checks of one argument. `name` and `argument` begin the error, as "index_sum" and "(): index" do.
inline void check_vector(const char* name, const char* argument, const at::Tensor& x) {
  TORCH_CHECK(x.layout() == at::kStrided, name, argument, ": expected a strided tensor, but got ", x.layout());
  TORCH_CHECK(x.dim() == 1, name, argument, ": expected a tensor of one dim, but got ", x.dim());
}
inline void check_integers(const char* name, const char* argument, const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kLong || x.scalar_type() == at::kInt, name, argument,
              ": expected a tensor of int64 or int32, but got ", x.scalar_type());
  check_vector(name, argument, x);
}
inline void check_device(const char* name, const char* argument, const at::Tensor& x, at::Device device, const char* other) {
  TORCH_CHECK(x.device() == device, name, argument, ": expected to be on ", device, " as ", other, ", but is on ", x.device());
}

template <class Result, class Make>
Result new_results(Make make) {
  if constexpr (std::is_same_v<Result, at::Tensor>) return make();
  else return Result{make(), make()};
}

// --- kernels ----------------------------------------------------------------------------------------------------------------

template <class Family, class Function = typename Family::Function>
struct Plumbing;

template <class Family>
Family family_of(Which which) {
  if constexpr (std::is_empty_v<Family>) return {};
  else return {which};
}

// The name of an operator; nullptr if a family does not have it.
template <class Family>
const char* name_in(Which which) {
  if (std::is_empty_v<Family> && !(which == Which())) return nullptr;
  return family_of<Family>(which).name();
}

template <class Family, class Result, class... Args>
struct Plumbing<Family, Result(Args...)> {
  using Tensor = at::Tensor;

  static const auto& functional(Which which = {}) {
    static const Handles<Result(Args...)> handles(name_in<Family>, "");
    return handles[which];
  }
  static const auto& out_variant(Which which = {}) {
    static const Handles<Tensor&(Args..., Tensor&)> handles(name_in<Family>, "out");
    return handles[which];
  }

  static Result reduce_tuned(Which which, Args... args, const Tuning& tuning) {
    const auto family = family_of<Family>(which);
    const auto call = family.template check<int64_t>(args..., nullptr);
    Result result = new_results<Result>([&] { return allocate(call.sizes, call.dtype, first_of(args...)); });
    family.compute(call, args..., result, tuning);
    return result;
  }

  static Result reduce(Which which, Args... args) { return reduce_tuned(which, args..., {}); }

  GPUREDUCE_SMALL static Result reduce_forced(Which which, Args... args, const std::string& tuning) {
    return reduce_tuned(which, args..., Tuning::parse(tuning));
  }

  GPUREDUCE_SMALL static Result reduce_meta(Which which, Args... args) {
    const auto call = family_of<Family>(which).template check<c10::SymInt>(args..., nullptr);
    const auto options = at::TensorOptions().dtype(call.dtype).device(first_of(args...).device());
    return new_results<Result>([&] { return at::empty_symint(call.sizes, options); });
  }

  GPUREDUCE_SMALL static Tensor& reduce_out(Which which, Args... args, Tensor& out) {
    const auto family = family_of<Family>(which);
    const auto call = family.template check<int64_t>(args..., &out);
    check_writable(out, call.sizes);
    if (out.sizes() != at::IntArrayRef(call.sizes)) family.refuse(call, args...);
    // If writing `out` could change an input, or `out` is a lazy view, computes in a tensor of its own first.
    if (any_tensor([&](const Tensor& x) { return out.is_alias_of(x); }, args...) || out.is_conj() || out.is_neg()) {
      const Tensor own = at::empty(call.sizes, out.options());
      family.compute(call, args..., own, {});
      at::native::resize_output(out, call.sizes);
      out.copy_(own);
      return out;
    }
    at::native::resize_output(out, call.sizes);
    family.compute(call, args..., out, {});
    return out;
  }

  GPUREDUCE_SMALL static Tensor& reduce_out_meta(Which which, Args... args, Tensor& out) {
    at::native::resize_output_symint(out, family_of<Family>(which).template check<c10::SymInt>(args..., &out).sizes);
    return out;
  }

  GPUREDUCE_SMALL static Tensor& reduce_out_autograd(Which which, c10::DispatchKeySet keys, Args... args, Tensor& out) {
    const auto family = family_of<Family>(which);
    if (family.has_gradient()) {
      const auto needs_grad = [](const Tensor& x) { return torch::autograd::compute_requires_grad(x); };
      const auto has_tangent = [](const Tensor& x) { return torch::autograd::isFwGradDefined(x); };
      const auto function = [&] { return function_name(family.name()); };
      if (any_tensor(needs_grad, args..., out)) torch::autograd::throw_error_out_requires_grad(function().c_str());
      TORCH_CHECK_NOT_IMPLEMENTED(!any_tensor(has_tangent, args..., out), "Trying to use forward AD with ", function(),
                                  "_out that does not support it because it is an out= function");
    }
    const at::AutoDispatchBelowAutograd below;
    return out_variant(which).redispatch(keys & c10::after_autograd_keyset, args..., out);
  }

  // Counts the write to `out`, so that a backward pass that needs the old values raises an error, as after torch's op. A
  // refused call writes nothing, so it is not counted.
  GPUREDUCE_SMALL static Tensor& reduce_out_counted(Which which, c10::DispatchKeySet keys, Args... args, Tensor& out) {
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      out_variant(which).redispatch(keys & c10::after_ADInplaceOrView_keyset, args..., out);
    }
    torch::autograd::increment_version(out);
    return out;
  }

  // Under functionalization (torch.compile, torch.export) the out variant becomes a call of the plain one, whose result
  // replaces `out`. torch does this by itself only for ops that do not return the tensor that they write.
  GPUREDUCE_SMALL static Tensor& reduce_out_functional(Which which, Args... args, Tensor& out) {
    namespace functionalization = at::functionalization::impl;
    const auto family = family_of<Family>(which);
    const bool from_functional = any_tensor([](const Tensor& x) { return functionalization::isFunctionalTensor(x); }, args...);
    return [&](const auto&... plain) -> Tensor& {
      const at::AutoDispatchSkipFunctionalize below;
      if (!functionalization::isFunctionalTensor(out)) {
        TORCH_CHECK(!from_functional, family.name(), ": out is written, so it must be functionalized where an input is");
        return out_variant(which).call(plain..., out);
      }
      const at::ScalarType result = family.template check<c10::SymInt>(plain..., &out).dtype;
      const auto& handle = functional(which);
      const Tensor value = family.out_has_dtype() ? handle.call(with_dtype(plain, result)...) : handle.call(plain...);
      functionalization::replace_(out, value.to(result));  // results of any and all may be bool or uint8
      functionalization::commit_update(out);
      functionalization::sync(out);
      return out;
    }(functionless(args)...);
  }

  // torch's policy fp32_set_opt_dtype: the result is float32, unless the call names a dtype or an input is float64. The op
  // reads small floats itself, so inputs are neither cast nor copied.
  template <c10::DeviceType device>
  GPUREDUCE_SMALL static Result reduce_autocast(Which which, Args... args) {
    const c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(device));
    const auto eligible = [](const Tensor& x) { return at::autocast::is_eligible(x, device); };
    const auto wide = [](const Tensor& x) { return x.scalar_type() == at::kDouble; };
    const OptionalDtype given = dtype_in(std::get<sizeof...(Args) - 1>(std::tie(args...)));
    const bool casts = !given && any_tensor(eligible, args...) && !any_tensor(wide, args...);
    return functional(which).call(with_dtype(args, casts ? OptionalDtype(at::kFloat) : given)...);
  }
};

// --- registration -----------------------------------------------------------------------------------------------------------

// Lazily conjugated and negated views reach the kernels as they are, without a copy.
inline void put_fallthrough(torch::Library& m, const std::string& name) {
  for (const Key key : {Key::Conjugate, Key::Negative}) put(m, key, name, torch::CppFunction::makeFallthrough());
}

// Refuses tensors that are not strided, with one message for all operators.
void refuse_layouts(torch::Library& m, const std::string& name);

// Defines an operator of a family without an out variant.
template <class Family>
GPUREDUCE_SMALL void define_reduction(torch::Library& m, const std::string& result, Which which = {}) {
  using Kernels = Plumbing<Family>;
  const std::string name = family_of<Family>(which).name();
  define_schema(m, name + Family::kArguments + ") -> " + result);
  put_on_backends(m, name, kernel_of(which, &Kernels::reduce));
  put_meta(m, name, kernel_of(which, &Kernels::reduce_meta));
  put_fallthrough(m, name);
  refuse_layouts(m, name);
}

// Defines an operator of a family and its out variant.
template <class Family>
GPUREDUCE_SMALL void define_reduction_with_out(torch::Library& m, Which which = {}) {
  using Kernels = Plumbing<Family>;
  define_reduction<Family>(m, "Tensor", which);
  const auto family = family_of<Family>(which);
  const std::string name = family.name(), out = name + ".out";
  define_schema(m, out + Family::kArguments + separator(Family::kArguments) + "Tensor(a!) out) -> Tensor(a!)");
  put_on_backends(m, out, kernel_of(which, &Kernels::reduce_out));
  put_meta(m, out, kernel_of(which, &Kernels::reduce_out_meta));
  put(m, Key::Autograd, out, kernel_of(which, &Kernels::reduce_out_autograd));
  put(m, Key::ADInplaceOrView, out, kernel_of(which, &Kernels::reduce_out_counted));
  put(m, Key::Functionalize, out, kernel_of(which, &Kernels::reduce_out_functional));
  if (family.autocasts(at::kCUDA))
    put(m, Key::AutocastCUDA, name, kernel_of(which, &Kernels::template reduce_autocast<at::kCUDA>));
  if (family.autocasts(at::kCPU))
    put(m, Key::AutocastCPU, name, kernel_of(which, &Kernels::template reduce_autocast<at::kCPU>));
  put_fallthrough(m, out);
  refuse_layouts(m, out);
}

// Defines `prefix`_tuned, which forces a plan, for tests and tuning.
template <class Family>
GPUREDUCE_SMALL void define_tuned(torch::Library& m, const std::string& prefix, const std::string& result, Which which = {}) {
  const std::string name = prefix + "_tuned";
  m.def((name + Family::kArguments + ", str tuning=\"\") -> " + result).c_str());
  put_on_backends(m, name, kernel_of(which, &Plumbing<Family>::reduce_forced));
  put_fallthrough(m, name);
}

// --- plans ------------------------------------------------------------------------------------------------------------------

template <auto planned, class Function = decltype(planned)>
struct Planning;

template <auto planned, class... Args>
struct Planning<planned, Reduction (*)(Args...)> {
  GPUREDUCE_SMALL static std::string explain(Args... args, const std::string& tuning) {
    return explained(planned(args...), first_of(args...).device(), Tuning::parse(tuning));
  }
#ifdef GPUREDUCE_WITH_CUDA
  GPUREDUCE_SMALL static int64_t plans(Args... args) { return plans_of(planned(args...), first_of(args...).device()); }

  GPUREDUCE_SMALL static void remember(Args... args, int64_t candidate) {
    Reduction r = planned(args...);
    const Device& device = cuda::facts(first_of(args...).device());
    const int64_t plans = plans_of(r, first_of(args...).device());
    TORCH_CHECK_INDEX(plans > 0 && candidate < plans, "candidate: expected one of ", plans, " plans, but got ", candidate);
    remember_plan(r, device, static_cast<int>(std::max<int64_t>(candidate, -1)));
    if (r.addends != Addends::values) return;
    r.finish = Finish::quotient;  // a sum's plan serves means, too
    classify(r);
    remember_plan(r, device, static_cast<int>(std::max<int64_t>(candidate, -1)));
  }
#endif
};

// Defines the operators that show and choose the plan of a call, which `planned` makes from (self, ..., dtype):
// `prefix`_explain, for torch_reduce.explain; _plans, the number of plans, 0 if there is nothing to read; and _remember, which
// from now on uses the plan with this index for calls of this kind, or the chosen one for -1. Both are for torch_reduce.tune.
template <auto planned>
GPUREDUCE_SMALL void define_planning(torch::Library& m, const std::string& prefix, const std::string& arguments) {
  using Kernels = Planning<planned>;
  m.def((prefix + "_explain" + arguments + ", str tuning=\"\") -> str").c_str());
  m.def((prefix + "_plans" + arguments + ") -> int").c_str());
  m.def((prefix + "_remember" + arguments + ", int candidate) -> ()").c_str());
  put_on_backends(m, prefix + "_explain", &Kernels::explain);
#ifdef GPUREDUCE_WITH_CUDA
  put(m, Key::CUDA, prefix + "_plans", &Kernels::plans);
  put(m, Key::CUDA, prefix + "_remember", &Kernels::remember);
#endif
  for (const char* each : {"_explain", "_plans", "_remember"}) put_fallthrough(m, prefix + each);
}

}  // namespace gpureduce
