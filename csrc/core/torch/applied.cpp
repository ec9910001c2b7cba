#include "applied.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

#include "../cpu/apply.h"
#include "batch.h"
#include "explain.h"
#include "gradient.h"

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "../cuda/apply.h"
#endif

namespace gpureduce {

namespace {

using at::Tensor;

GPUREDUCE_HANDLE(applied, "_apply",
                 Tensor(const Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, std::string_view,
                        c10::SymInt, double, at::ScalarType))

GPUREDUCE_HANDLE(joined, "_joined", Tensor(const Tensor&))
GPUREDUCE_HANDLE(first_order, "_first_order", Tensor(const Tensor&, std::string_view))

bool is_subclass(const Tensor& x) { return x.key_set().has(Key::Python); }

const char* const kNames[] = {
#define GPUREDUCE_FORMULA(name) #name,
    GPUREDUCE_FORMULAS(GPUREDUCE_FORMULA)
#undef GPUREDUCE_FORMULA
};

Formula formula_of(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (name == kNames[i]) return static_cast<Formula>(i);
  TORCH_CHECK_VALUE(false, "_apply: there is no formula '", name, "'");
}

bool is_double(const Tensor& tensor) { return tensor.defined() && tensor.scalar_type() == at::kDouble; }

// True if the formula is computed in float64.
bool computes_wide(Formula formula, const Tensor& self, const Tensor& grad) {
  return is_wide(formula) || is_double(self) || (formula != Formula::exponent && is_double(grad));
}

// The result, the elements, and the other operands, which may be undefined.
using Operands = std::array<Tensor, 2 + kOthers>;

void check(const Operands& operands, at::ScalarType dtype) {
  const Tensor& self = operands[1];
  TORCH_CHECK(at::isFloatingType(dtype), "_apply: dtype: expected a floating one, but got ", dtype);
  for (size_t i = 1; i < operands.size(); ++i) {
    if (!operands[i].defined()) continue;
    dtype_of(operands[i].scalar_type(), "an input of dtype");
    TORCH_CHECK(!operands[i].is_complex(), "_apply: complex numbers are not supported");
    TORCH_CHECK(operands[i].dim() == self.dim(), "_apply: expected ", self.dim(), " dims, but got ", operands[i].dim());
    TORCH_CHECK(operands[i].device() == self.device(), "_apply: Expected all tensors to be on the same device, but found ",
                operands[i].device(), " and ", self.device());
  }
}

at::TensorIterator iterator_of(const Operands& operands) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).check_all_same_device(true).resize_outputs(false);
  config.add_owned_output(operands[0]);
  for (size_t i = 1; i < operands.size(); ++i)
    if (operands[i].defined()) config.add_owned_const_input(operands[i]);
  return config.build();
}

// Calls f(i, argument) for each operand that is defined; `argument` is its index in the iterator.
template <class F>
void each_operand(const Operands& operands, F f) {
  int argument = 0;
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].defined()) f(i, argument++);
}

#ifdef GPUREDUCE_WITH_CUDA
void run_on_gpu(const at::TensorIterator& whole, const Operands& operands, Formula formula, bool wide, double number) {
  const c10::cuda::CUDAGuard guard(operands[0].device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int multiprocessors = cuda::facts(operands[0].device()).multiprocessors;
  for (const auto& iterator : whole.with_32bit_indexing()) {
    cuda::Apply call{};
    call.formula = formula;
    call.wide = wide;
    call.number = number;
    call.multiprocessors = multiprocessors;
    call.rank = iterator.ndim();
    call.count = static_cast<uint32_t>(iterator.numel());
    TORCH_CHECK(call.rank <= kMaxRank, "_apply: more than ", kMaxRank, " dims stay apart");
    for (int d = 0; d < call.rank; ++d) call.sizes[d] = iterator.shape()[call.rank - 1 - d];  // fastest last
    each_operand(operands, [&](size_t i, int argument) {
      cuda::Apply::Operand& to = call.operands[i];
      to.data = static_cast<char*>(const_cast<void*>(iterator.data_ptr(argument)));
      to.dtype = dtype_of(operands[i].scalar_type(), "an input of dtype");
      for (int d = 0; d < call.rank; ++d) to.strides[d] = static_cast<int32_t>(iterator.strides(argument)[call.rank - 1 - d]);
    });
    C10_CUDA_CHECK(cuda::apply(call, stream));
  }
}
#endif

void run_on_cpu(at::TensorIterator& iterator, const Operands& operands, Formula formula, bool wide, double number) {
  DType dtypes[2 + kOthers] = {};
  each_operand(operands, [&](size_t i, int) { dtypes[i] = dtype_of(operands[i].scalar_type(), "an input of dtype"); });
  const int arguments = iterator.ntensors();
  iterator.for_each([&](char** data, const int64_t* strides, int64_t inner, int64_t outer) {
    for (int64_t row = 0; row < outer; ++row) {
      char* at[2 + kOthers] = {};
      int64_t steps[2 + kOthers] = {};
      each_operand(operands, [&](size_t i, int argument) {
        at[i] = data[argument] + row * strides[arguments + argument];
        steps[i] = strides[argument];
      });
      cpu::apply(formula, wide, number, dtypes, at, steps, inner);
    }
  });
}

void run(const Operands& operands, Formula formula, double number) {
  const bool wide = computes_wide(formula, operands[1], operands[2]);
  at::TensorIterator iterator = iterator_of(operands);
  if (Explanation* const e = explanation()) {
    const int64_t count = iterator.numel();
    const std::string what =
        "formula " + std::string(kNames[static_cast<int>(formula)]) + " of " + std::to_string(count) + " elements";
    return e->tell(
        operands[0].device(), what + ", computed in " + (wide ? "float64" : "float32"), "element",
        [](const Device&) {
          return "kernel apply: whole vectors where elements and results are aligned, 256 threads per block";
        },
        [&] { e->say_parts(count, at::internal::GRAIN_SIZE); });
  }
#ifdef GPUREDUCE_WITH_CUDA
  if (operands[0].is_cuda()) return run_on_gpu(iterator, operands, formula, wide, number);
#endif
  run_on_cpu(iterator, operands, formula, wide, number);
}

Tensor compute(const Tensor& self, const OptionalTensor& grad, const OptionalTensor& result, const OptionalTensor& more,
               std::string_view name, c10::SymInt count, double correction, at::ScalarType dtype) {
  const Formula formula = formula_of(name);
  Operands operands{Tensor(), self, tensor_of(grad), tensor_of(result), tensor_of(more)};
  check(operands, dtype);
  operands[0] = at::empty_like(self, self.options().dtype(dtype));
  if (self.sym_numel() == 0) return operands[0];
  const double number = std::max(static_cast<double>(count.expect_int()) - correction, 0.0);
  run(operands, formula, number);
  return operands[0];
}

Tensor compute_meta(const Tensor& self, const OptionalTensor& grad, const OptionalTensor& result, const OptionalTensor& more,
                    std::string_view name, c10::SymInt, double, at::ScalarType dtype) {
  formula_of(name);
  check({Tensor(), self, tensor_of(grad), tensor_of(result), tensor_of(more)}, dtype);
  return at::empty_like(self, self.options().dtype(dtype));
}

// Multiplies each tensor in place by a number, in float32 or float64, and rounds once.
void scale(at::TensorList self, const Tensor& factor) {
  for (const Tensor& each : self) {
    if (each.numel() == 0) continue;
    const Operands operands{each, each, factor.reshape(std::vector<int64_t>(each.dim(), 1)), Tensor(), Tensor()};
    check(operands, each.scalar_type());
    run(operands, Formula::product, 1);
    torch::autograd::increment_version(each);
  }
}

void scale_meta(at::TensorList, const Tensor&) {}

// --- derivatives of formulas ----------------------------------------------------------------------------------------------

// The facts that a formula's derivatives need besides its tensors.
struct ApplyFacts {
  int64_t formula = 0;
  c10::SymInt count = 1;
  double correction = 0;
  at::ScalarType self_dtype = at::kFloat, grad_dtype = at::kFloat;

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.formula);
    f(self.count);
    f(self.correction);
    f(self.self_dtype);
    f(self.grad_dtype);
  }
};

// The elements and the other operands, in the type that the formula is computed in; missing operands stay undefined.
using Numbers = std::array<Tensor, 1 + kOthers>;

// The derivative of y by operand i, from differentiable torch operators on the operands, which have one dtype. Its shape
// broadcasts to the elements' shape. Undefined if it is 0.
Tensor derivative(Formula formula, const Numbers& x, int i, const ApplyFacts& saved) {
  const at::ScalarType dtype = x[0].scalar_type();
  const auto times = [](const Tensor& a, const Tensor& b) { return b.defined() ? a * b : a; };
  const auto without_grad = [&] { return apply(formula, x[0], {{}, x[2], x[3], saved.count, saved.correction}, dtype); };
  const auto share = [&] {                                           // g / r, and 0 where r is 0
    const Tensor one = x[1].defined() ? x[1] : at::ones_like(x[0]);  // a DTensor where x is one
    const auto [a, b] = std::tuple(one.expand_as(x[0]), x[2].expand_as(x[0]));
    return apply(Formula::ratio, a, {{}, b}, dtype);
  };
  switch (formula) {
    case Formula::quotient:
      if (i == 0) return apply(formula, at::ones_like(x[0]), {{}, {}, {}, saved.count, saved.correction}, dtype);
      return {};
    case Formula::kept:
    case Formula::equal:
    case Formula::share:
    case Formula::sign:
    case Formula::extreme: return i == 1 ? without_grad() : Tensor();
    case Formula::product: return i == 0 ? (x[1].defined() ? x[1] : at::ones_like(x[0])) : i == 1 ? x[0] : Tensor();
    case Formula::exponent: {
      if (i == 3) return {};
      const Tensor e = without_grad();
      return i == 1 ? e : i == 0 ? times(e, x[1]) : -times(e, x[1]);
    }
    case Formula::ratio: return i == 1 ? without_grad() : i == 0 ? share() : i == 2 ? -without_grad() * share() : Tensor();
    case Formula::square: return i == 1 ? without_grad() : i == 0 ? times(2 * x[0].abs(), x[1]) : Tensor();
    case Formula::ratio_square: {
      if (i == 1) return without_grad();
      if (i == 3) return {};
      const Tensor part = apply(Formula::ratio, x[0], {{}, x[2]}, dtype).abs();
      return i == 0 ? 2 * part * share() : -2 * without_grad() * share();
    }
    case Formula::deviation:
      if (i == 1) return x[0] - x[2];
      if (i == 3) return at::ones_like(x[0]);
      return i == 0 ? x[1].expand_as(x[0]) : -x[1].expand_as(x[0]);
    case Formula::divided:
      return i == 2 ? -apply(formula, apply(formula, x[0], {{}, x[2]}, dtype), {{}, x[2]}, dtype) : Tensor();
    case Formula::inverse_root: {
      if (i > 1) return {};
      const Tensor root = apply(formula, x[0], {x[1]}, dtype);
      return root * root * root * -0.5;
    }
    case Formula::silu:
      if (i > 1) return {};
      return i == 1 ? without_grad() : times(apply(Formula::silu_slope, x[0], {}, dtype), x[1]);
    case Formula::silu_slope: {  // p = 1 / (1 + e^-x): p * (1 - p) * (2 + x * (1 - 2 * p))
      if (i > 0) return {};
      const Tensor p = at::sigmoid(x[0]);
      return p * (1 - p) * (2 + x[0] * (1 - 2 * p));
    }
    case Formula::entropy: {  // e^x * x + e^x
      if (i > 0) return {};
      const Tensor zero = number_like(0, x[0]);
      return apply(formula, x[0], {}, dtype) + apply(Formula::exponent, x[0], {{}, zero}, dtype);
    }
    case Formula::softmax_backward: {
      if (i == 3) return {};
      if (i == 0) return apply(formula, at::ones_like(x[0]), {x[1], x[2], x[3]}, dtype);
      const Tensor by_grad = apply(formula, x[0], {{}, number_like(0, x[0]), x[3]}, dtype);
      return i == 1 ? by_grad : -by_grad;
    }
    case Formula::others: return i == 1 ? without_grad() : Tensor();  // i == 0: see products_without()
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "_apply: the formula ", kNames[static_cast<int>(formula)], " has no derivative");
  }
  return {};
}

// For each element k: the sum, over all other elements i of its output, of w_i times the product of all elements except i and
// k. This is the derivative of Formula::others by the elements, which is symmetric. `outputs` has the outputs' shape, with
// reduced dims of size 1.
Tensor products_without(const Tensor& x, const Tensor& w, const Tensor& outputs) {
  Dims order, reduced;  // kept dims first
  for (int64_t d = 0; d < x.dim(); ++d) {
    const bool keeps = TORCH_GUARD_OR_FALSE(outputs.sym_size(d).sym_eq(x.sym_size(d)));
    (keeps ? order : reduced).push_back(d);
  }
  if (reduced.empty() || TORCH_GUARD_OR_FALSE(x.sym_numel().sym_eq(0))) return at::zeros_like(x);
  if (is_subclass(x)) first_order().call(x.detach(), "prod");
  const int64_t kept = static_cast<int64_t>(order.size());
  order.insert(order.end(), reduced.begin(), reduced.end());
  Dims back(order.size());
  for (size_t d = 0; d < order.size(); ++d) back[order[d]] = static_cast<int64_t>(d);
  const Tensor permuted = x.permute(order);
  std::vector<c10::SymInt> sizes(permuted.sym_sizes().begin(), permuted.sym_sizes().begin() + kept);
  c10::SymInt n = 1;
  for (int64_t d : reduced) n *= x.sym_size(d);
  sizes.push_back(n);
  const Tensor row = permuted.reshape_symint(sizes), weights = w.expand_as(x).permute(order).reshape_symint(sizes);
  const auto shifted = [&](const Tensor& t) {  // by one place, with a 1 in front
    return at::cat({at::ones_like(t.narrow_symint(-1, 0, 1)), t.narrow_symint(-1, 0, n - 1)}, -1);
  };
  const auto unshifted = [&](const Tensor& t) {
    return at::cat({t.narrow_symint(-1, 1, n - 1), at::zeros_like(t.narrow_symint(-1, 0, 1))}, -1);
  };
  const Tensor ahead = shifted(row), behind = shifted(row.flip(-1));
  const Tensor before = ahead.cumprod(-1), after = behind.cumprod(-1);  // products of the elements before and after
  const Tensor by_before = at::cumprod_backward(weights * after.flip(-1), ahead, -1, before);
  const Tensor by_after = at::cumprod_backward((weights * before).flip(-1), behind, -1, after);
  return (unshifted(by_before) + unshifted(by_after).flip(-1)).reshape_symint(permuted.sym_sizes()).permute(back);
}

// Sums t over the dims along which `like` is broadcast.
Tensor summed_as(const Tensor& t, const Tensor& like) {
  Dims dims;
  for (int64_t d = 0; d < t.dim(); ++d)
    if (TORCH_GUARD_OR_FALSE(like.sym_size(d).sym_eq(1)) && TORCH_GUARD_OR_TRUE(t.sym_size(d).sym_ne(1))) dims.push_back(d);
  return dims.empty() ? t : functional(Operation::sum).call(t, at::IntArrayRef(dims), true, std::nullopt);
}

Numbers numbers_of(Formula formula, const std::array<Tensor, 1 + kOthers>& kept) {
  const at::ScalarType dtype = computes_wide(formula, kept[0], kept[1]) ? at::kDouble : at::kFloat;
  Numbers x;
  for (size_t i = 0; i < x.size(); ++i)
    if (kept[i].defined()) x[i] = kept[i].to(dtype);
  return x;
}

struct ApplyRule : RuleOf<ApplyFacts> {
  static constexpr std::array<bool, 1 + kOthers> kKept = {false, false, false, false};

  static std::string name() { return "gpureduce_apply_backward"; }

  static variable_list gradients(variable_list grads, const ApplyFacts& saved, const std::array<Tensor, 1 + kOthers>& kept) {
    variable_list found(1 + kOthers);
    if (!grads[0].defined()) return found;
    const Formula formula = static_cast<Formula>(saved.formula);
    if (formula == Formula::added) {
      const Tensor& factor = kept[3];
      found[0] = grads[0].to(saved.self_dtype);
      found[1] = (factor.defined() ? grads[0].to(factor.scalar_type()) * factor : grads[0]).to(saved.grad_dtype);
      return found;
    }
    const Numbers x = numbers_of(formula, kept);
    const Tensor grad = grads[0].to(x[0].scalar_type());
    for (int i = 0; i <= kOthers; ++i) {
      if (!kept[i].defined() || !at::isFloatingType(kept[i].scalar_type())) continue;
      Tensor change;
      if (formula == Formula::quotient && i == 0) {
        change = apply(formula, grad, {{}, {}, {}, saved.count, saved.correction}, grad.scalar_type());
      } else if (formula == Formula::divided && i == 0) {
        change = divided(grad, x[2]);
      } else if (formula == Formula::others && i == 0) {
        change = products_without(x[0], x[1].defined() ? grad * x[1] : grad, x[2]);
      } else if (const Tensor by = derivative(formula, x, i, saved); by.defined()) {
        change = grad * by;
      }
      if (change.defined()) found[i] = summed_as(change, kept[i]).to(kept[i].scalar_type());
      else if (i == 0 && is_subclass(kept[i])) found[i] = at::zeros_like(kept[i]);  // torch's zeros would be no DTensor
    }
    return found;
  }
};

// The change of the result by the tangents of its operands.
Tensor tangent(const ApplyFacts& saved, const std::array<Tensor, 1 + kOthers>& given) {
  const Formula formula = static_cast<Formula>(saved.formula);
  if (formula == Formula::added) {
    const auto change = [&](int i) {
      return torch::autograd::isFwGradDefined(given[i]) ? given[i]._fw_grad(/*level=*/0) : at::zeros_like(given[i]);
    };
    return apply(formula, change(0), {change(1), given[2], given[3]}, given[0].scalar_type());
  }
  std::array<Tensor, 1 + kOthers> primals;
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i].defined()) primals[i] = given[i]._fw_primal(/*level=*/0);
  const Numbers x = numbers_of(formula, primals);
  Tensor change = at::zeros_like(x[0]);
  for (int i = 0; i <= kOthers; ++i) {
    if (!torch::autograd::isFwGradDefined(given[i])) continue;
    const Tensor tangent = given[i]._fw_grad(/*level=*/0).to(x[0].scalar_type());
    if (formula == Formula::others && i == 0) {
      const Tensor by = products_without(x[0], tangent, x[2]);
      change = change + (x[1].defined() ? by * x[1] : by);
    } else if (formula == Formula::divided && i == 0) {
      change = change + divided(tangent, x[2]);
    } else if (const Tensor by = derivative(formula, x, i, saved); by.defined()) {
      change = change + by * tangent;
    }
  }
  return change;
}

Tensor differentiable_apply(c10::DispatchKeySet keys, const Tensor& self, const OptionalTensor& grad,
                            const OptionalTensor& result, const OptionalTensor& more, std::string_view name, c10::SymInt count,
                            double correction, at::ScalarType dtype) {
  const std::array<Tensor, 1 + kOthers> given{self, tensor_of(grad), tensor_of(result), tensor_of(more)};
  const bool linear = formula_of(name) == Formula::added;  // then x and g are not kept, and may be written
  const auto saved = [&] {
    return ApplyFacts{static_cast<int64_t>(formula_of(name)), count, correction, self.scalar_type(),
                      given[1].defined() ? given[1].scalar_type() : at::kFloat};
  };
  return with_derivatives<ApplyRule>(
      given,
      [&] {
        return applied().redispatch(keys & c10::after_autograd_keyset, self, grad, result, more, name, count, correction,
                                    dtype);
      },
      saved,
      [&](const Tensor&) { return linear ? std::array<Tensor, 1 + kOthers>{Tensor(), Tensor(), Tensor(), given[3]} : given; },
      [&](const Tensor&) { return tangent(saved(), given).to(dtype); });
}

// --- vmap -----------------------------------------------------------------------------------------------------------------

Tensor batched(const Tensor& self, const OptionalTensor& grad, const OptionalTensor& result, const OptionalTensor& more,
               std::string_view name, c10::SymInt count, double correction, at::ScalarType dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level("_apply");
  std::array<Tensor, 1 + kOthers> values{self, tensor_of(grad), tensor_of(result), tensor_of(more)};
  std::optional<c10::SymInt> size;
  for (Tensor& each : values) {
    if (!each.defined()) continue;
    const auto [value, batched] = in_front(each, level);
    if (batched) size = value.sym_size(0);
    each = batched ? value : value.unsqueeze(0);
  }
  if (size) {
    std::vector<c10::SymInt> sizes = values[0].sym_sizes().vec();
    sizes[0] = *size;
    values[0] = values[0].expand_symint(sizes);
    if (formula_of(name) == Formula::added) {  // its gradients are not summed
      sizes = values[1].sym_sizes().vec();
      sizes[0] = *size;
      values[1] = values[1].expand_symint(sizes);
    }
    if (values[2].defined()) {  // its dims of size 1 count as reduced, which the batch dim is not
      sizes = values[2].sym_sizes().vec();
      sizes[0] = *size;
      values[2] = values[2].expand_symint(sizes);
    }
  } else {
    for (Tensor& each : values)
      if (each.defined()) each = each.squeeze(0);
  }
  Tensor y =
      applied().call(values[0], optional(values[1]), optional(values[2]), optional(values[3]), name, count, correction, dtype);
  return size ? with_batch(std::move(y), 0, level) : y;
}

}  // namespace

Tensor apply(Formula formula, const Tensor& self, Given given, at::ScalarType dtype) {
  if (self.is_complex()) {
    for (Tensor* each : {&given.grad, &given.result, &given.more})
      if (each->defined()) *each = each->unsqueeze(-1);
    return at::view_as_complex(
        apply(formula, at::view_as_real(self.resolve_conj()), std::move(given), c10::toRealValueType(dtype)));
  }
  return applied().call(self, optional(given.grad), optional(given.result), optional(given.more),
                        kNames[static_cast<int>(formula)], given.count, given.correction, dtype);
}

// With leading dims of size 1, as many as `like` has.
static Tensor of_rank(Tensor x, const Tensor& like) {
  while (x.dim() < like.dim()) x = x.unsqueeze(0);
  return x;
}

Tensor multiplied(const Tensor& x, Tensor y) { return apply(Formula::product, x, {of_rank(std::move(y), x)}, x.scalar_type()); }

Tensor divided(const Tensor& x, Tensor y) {
  return apply(Formula::divided, x, {{}, of_rank(std::move(y), x)}, x.scalar_type());
}

Tensor number_like(double number, const Tensor& like) { return of_rank(at::scalar_tensor(number, like.options()), like); }

Tensor compared(const Tensor& self) {
  const Tensor x = self.detach();
  return is_subclass(x) ? joined().call(x) : x;
}

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define_operator<compute, compute_meta, differentiable_apply, batched>(
      m,
      "_apply(Tensor self, Tensor? grad, Tensor? result, Tensor? more, str formula, SymInt count, float correction, "
      "ScalarType dtype) -> Tensor");
  // DTensors have rules for these. For all other tensors they are nothing, so that traces do not show it.
  m.def("_joined(Tensor(a) self) -> Tensor(a)", [](const Tensor& self) { return self; });
  m.def("_first_order(Tensor(a) self, str function) -> Tensor(a)", [](const Tensor& self, std::string_view) { return self; });
  for (const char* each : {"_joined", "_first_order"})
    for (const Key key : {Key::AutogradCPU, Key::AutogradCUDA})
      m.impl(each, torch::dispatch(key, torch::CppFunction::makeFallthrough()));
  define_operator<scale, scale_meta>(m, "_scale_(Tensor(a!)[] self, Tensor factor) -> ()");  // for clip_grad_norm_
}
