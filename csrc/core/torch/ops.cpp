// The table's operators: checks, and calls of backends. Semantics are torch.sum's unless docs/order.md says otherwise.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/WrapDimUtils.h>

#include <limits>
#include <vector>

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/EmptyTensor.h>
#endif

#include "../../exact/torch.h"
#include "../../pairs/torch_exponents.h"
#include "../cpu/sum.h"
#include "batch.h"
#include "explain.h"
#include "plumbing.h"
#include "stages.h"

namespace gpureduce {

DimMask reduced_dims(OptionalDims dim, int64_t rank) {
  const bool all = !dim.has_value() || dim->empty();
  DimMask reduce;
  reduce.resize(std::max<int64_t>(rank, 1), all);
  for (int64_t given : all ? at::IntArrayRef() : *dim) {
    const int64_t d = at::maybe_wrap_dim(given, rank);
    TORCH_CHECK(!reduce[d], "dim ", d, " appears multiple times in the list of dims");
    reduce[d] = true;
  }
  reduce.resize(rank);
  return reduce;
}

namespace {

// For a norm: the real type of the numbers that are reduced. Raises torch.linalg.vector_norm's errors.
at::ScalarType norm_type(at::ScalarType input, OptionalDtype dtype) {
  const auto is_complex = [](at::ScalarType type) { return at::isComplexType(type); };
  TORCH_CHECK(at::isFloatingType(input) || is_complex(input),
              "linalg.vector_norm: Expected a floating point or complex tensor as input. Got ", input);
  if (!dtype) return at::isFloat8Type(input) ? at::kFloat : c10::toRealValueType(input);
  TORCH_CHECK(at::isFloatingType(*dtype) || is_complex(*dtype),
              "linalg.vector_norm: dtype should be floating point or complex, but got ", *dtype);
  TORCH_CHECK(is_complex(*dtype) == is_complex(input), "linalg.vector_norm: dtype should be ",
              is_complex(input) ? "complex for complex" : "real for real", " inputs, but got ", *dtype);
  const bool widens = at::isFloat8Type(input) || at::isFloat8Type(*dtype) ? input == *dtype || !at::isFloat8Type(*dtype)
                                                                          : at::promoteTypes(input, *dtype) == *dtype;
  TORCH_CHECK(widens, "linalg.vector_norm: the dtype of the input (", input,
              ") should be convertible without narrowing to the specified dtype (", *dtype, ")");
  return c10::toRealValueType(*dtype);
}

}  // namespace

at::ScalarType result_type(Operation op, at::ScalarType input, OptionalDtype dtype) {
  const OperationInfo row = info(op);
  switch (row.typing) {
    case Typing::norm: return norm_type(input, dtype);
    case Typing::count: return at::kLong;
    case Typing::truth: return input == at::kByte ? at::kByte : at::kBool;
    case Typing::same:
      TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(input), name_of(op) + 1,
                                  "(): complex numbers have no order: input has dtype ", input);
      return input;
    case Typing::log:
      TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(input), "logsumexp(): complex numbers are not supported: input has dtype ",
                                  input);
      TORCH_CHECK(!dtype || at::isFloatingType(*dtype), "logsumexp(): Expected a floating dtype of the result, but got ",
                  *dtype);
      if (dtype) return *dtype;
      if (at::isIntegralType(input, /*includeBool=*/true)) return c10::get_default_dtype_as_scalartype();
      return at::isFloat8Type(input) ? at::kFloat : input;
    default: break;
  }
  if (row.combine == Combine::product || row.typing == Typing::real) {
    const char* const what = row.combine == Combine::product ? "(): products of complex numbers" : "(): complex numbers";
    TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(input), name_of(op), what, " are not supported: input has dtype ", input);
    TORCH_CHECK_NOT_IMPLEMENTED(!dtype || !at::isComplexType(*dtype), name_of(op), what,
                                " are not supported: the result has dtype ", *dtype);
  }
  if (row.typing == Typing::real) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::isFloatingType(input) || !dtype || at::isFloatingType(*dtype), name_of(op),
                                "(): the dtype of a floating input's result must be floating, but is ", *dtype);
  }
  if (row.typing == Typing::mean) {
    const at::ScalarType type = dtype.value_or(input);
    TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type), name_of(op), "(): could not infer output dtype. ",
                dtype ? "Optional" : "Input", " dtype must be either a floating point or complex dtype. Got: ", type);
  }
  if (dtype) return *dtype;
  if (at::isIntegralType(input, /*includeBool=*/true)) return at::kLong;
  if (at::isFloat8Type(input)) return at::kFloat;
  return input;
}

at::ScalarType out_type(Operation op, const at::Tensor& self, OptionalDtype dtype, const at::Tensor& out) {
  const OperationInfo row = info(op);
  if (row.typing == Typing::truth && (out.scalar_type() == at::kBool || out.scalar_type() == at::kByte))
    return out.scalar_type();
  if (row.typing == Typing::log)
    TORCH_CHECK(at::isFloatingType(out.scalar_type()),
                "logsumexp(): Expected floating point type for result tensor, but got: ", out.scalar_type());
  // The mean of integers needs a dtype, whatever the dtype of `out`.
  at::ScalarType result = result_type(op, self.scalar_type(), dtype);
  if (row.has_dtype()) result = result_type(op, self.scalar_type(), dtype.value_or(out.scalar_type()));
  check_out_dtype(out, result);
  return result;
}

DType dtype_of(at::ScalarType type, const char* what, const char* function, bool complex) {
  switch (type) {
#define GPUREDUCE_FROM_TORCH(name, type, kind, accumulator, wide, family) \
  case at::ScalarType::name: return DType::name;
    GPUREDUCE_DTYPES(GPUREDUCE_FROM_TORCH)
#undef GPUREDUCE_FROM_TORCH
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, function, "(): ", what, " ", type,
                                  " is not supported; supported are the floats of 8 (e4m3fn, e5m2) to 64 bits, integers",
                                  complex ? ", bool and complex" : " and bool");
  }
}

namespace {

// The torch function whose arguments and error texts an operation copies.
const char* function_of(Operation op) {
  const OperationInfo row = info(op);
  return row.typing == Typing::norm ? "linalg.vector_norm" : row.name[0] == '_' ? row.name + 1 : row.name;
}

// The maximum of no elements does not exist: raises the error of torch.linalg.vector_norm or torch.amax. Data-dependent traced
// sizes pass here, and are checked when the op runs.
void check_identity(Operation op, const at::Tensor& self, OptionalDims dim) {
  const OperationInfo row = info(op);
  if (row.combine != Combine::largest) return;
  const auto is_zero = [](const c10::SymInt& size) { return TORCH_GUARD_OR_FALSE(size.sym_eq(0)); };
  const bool all = !dim.has_value() || dim->empty();
  if (row.typing == Typing::same) {
    if (!is_zero(self.sym_numel())) return;
    const char* const name = name_of(op) + 1;
    TORCH_CHECK(!all, name, "(): Expected reduction dim to be specified for input.numel() == 0. ",
                "Specify the reduction dim with the 'dim' argument.");
    for (int64_t d : *dim)
      TORCH_CHECK_INDEX(!is_zero(self.sym_size(d)), name, "(): Expected reduction dim ", d, " to have non-zero size.");
    return;
  }
  const char* const name = row.map == Map::magnitude ? "inf" : "-inf";
  if (all) {
    TORCH_CHECK(!is_zero(self.sym_numel()), "linalg.vector_norm cannot compute the ", name,
                " norm on an empty tensor because the operation does not have an identity");
    return;
  }
  for (int64_t d : *dim)  // in range: reduced_dims() has checked them
    TORCH_CHECK(self.dim() == 0 || !is_zero(self.sym_size(d)), "linalg.vector_norm cannot compute the ", name,
                " norm on the dimension ", d, " because this dimension is empty and the operation does not have an identity");
}

// Writes the results of outputs without elements.
void fill_with_identity(Operation op, const at::Tensor& out) {
  const OperationInfo row = info(op);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (row.combine == Combine::product || row.finish == Finish::all) out.fill_(1);
  else if (row.map == Map::exponent) out.fill_(-std::numeric_limits<double>::infinity());
  else if (row.finish != Finish::quotient) out.zero_();
  else if (out.is_complex()) out.fill_(c10::complex<double>(nan, nan));
  else out.fill_(nan);
}

// A new operation may have a map that kernels do not support for every accumulator.
void check_kernel(Operation op, const Reduction& r, bool found) {
  const char* const name = name_of(op);
  TORCH_CHECK_NOT_IMPLEMENTED(found, *name == '_' ? name + 1 : name, "(): there is no kernel for the map ", name_of(r.map),
                              " of elements of dtype ", info(r.in).name, " and the accumulator ", name_of(r.accumulator));
}

template <class Watch>
void compute(Operation op, const at::Tensor& self, const DimMask& reduce, bool keepdim, const at::Tensor& out,
             const Tuning& tuning, Watch&& watch) {
  const Reduction r = make_reduction(op, self, reduce, out.scalar_type(), out, keepdim);
  if (info(op).map == Map::value) warn_if_imaginary_is_lost(self.scalar_type(), out.scalar_type());
  if (r.problem.outputs == 0) return;
  if (r.problem.length == 0) return fill_with_identity(op, out);
  watch.end(Stage::problem);
  if (r.map == Map::exponent) return run_logsumexp(r, self, tuning);
  if (Explanation* const e = explanation()) return e->say(explained(r, self.device(), tuning));
#ifdef GPUREDUCE_WITH_CUDA
  if (self.is_cuda()) {
    const Plan plan = cuda::plan(r, self.device(), tuning);
    watch.end(Stage::plan);
    check_kernel(op, r, cuda::run(r, plan, self.device(), tuning));
    return watch.end(Stage::launch);
  }
#endif
  check_kernel(op, r, cpu::run(r));
}

// A call after its checks.
template <class Int>
struct TableCall {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  DimMask reduce;
};

// Checks a call of an operation. Raises torch's errors.
template <class Int>
TableCall<Int> checked(Operation op, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                       const at::Tensor* out) {
  TableCall<Int> call;
  if (out && info(op).typing == Typing::truth) out_type(op, self, dtype, *out);  // torch checks any's and all's before dims
  call.reduce = reduced_dims(dim, self.dim());
  check_identity(op, self, dim);
  call.dtype = out ? out_type(op, self, dtype, *out) : result_type(op, self.scalar_type(), dtype);
  if (out) check_out_place(*out, self.device());
  dtype_of(self.scalar_type(), "an input of dtype", function_of(op), takes_complex(op));
  dtype_of(call.dtype, out ? "an out tensor of dtype" : "a result of dtype", function_of(op), takes_complex(op));
  call.sizes = result_sizes(sizes_of<Int>(self), call.reduce, keepdim);
  return call;
}

// The table's operators as a family (plumbing.h).
struct TableReduction {
  Which which;

  const char* name() const { return operator_name(which); }
  static constexpr const char* kArguments = "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None";
  // For sums, the dtype of `out` decides. Others get dtype= itself: for norms of complex numbers it is complex, unlike the
  // result's dtype.
  bool out_has_dtype() const { return info(which.op).has_dtype(); }
  bool has_gradient() const { return info(which.op).has_gradient(); }
  bool autocasts(c10::DeviceType device) const {
    return device == at::kCUDA ? info(which.op).autocasts : info(which.op).autocasts_on_cpu();
  }
  using Function = Functional;

  template <class Int>
  TableCall<Int> check(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                       const at::Tensor* out) const {
    return checked<Int>(which.op, self, dim, keepdim, dtype, out);
  }

  void refuse(const TableCall<int64_t>& call, const at::Tensor& self, OptionalDims, bool keepdim, OptionalDtype) const {
    make_reduction(which.op, self, call.reduce, call.dtype, {}, keepdim);
  }

  void compute(const TableCall<int64_t>& call, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype,
               const at::Tensor& out, const Tuning& tuning) const {
    if (which.exact) exact::compute(which.op, call.dtype, self, dim, call.reduce, keepdim, out);
    else gpureduce::compute(which.op, self, call.reduce, keepdim, out, tuning, Unwatched{});
  }
};

GPUREDUCE_SMALL at::Tensor batched(Which which, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  return batched_reduction(operator_name(which), std::array{self}, dim, keepdim,
                           [&](const std::array<at::Tensor, 1>& input, OptionalDims dims, bool keeps) {
                             return functional(which).call(input[0], dims, keeps, dtype);
                           });
}

// A sum that is only planned.
Reduction planned(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
  const DimMask reduce = reduced_dims(dim, self.dim());
  return make_reduction(Operation::sum, self, reduce, result_type(Operation::sum, self.scalar_type(), dtype), {}, keepdim);
}

#ifdef GPUREDUCE_WITH_CUDA
// The microseconds of each stage of a sum, on average over `calls` calls.
std::vector<double> stages(const at::Tensor& self, OptionalDims dim, int64_t calls) {
  TORCH_CHECK(self.numel() > 0, "self: there is nothing to launch for no elements");
  TORCH_CHECK(calls > 0, "calls: expected a positive number, but got ", calls);
  Stopwatch watch;
  for (int64_t i = 0; i < calls; ++i) {
    watch.begin();
    const auto call = checked<int64_t>(Operation::sum, self, dim, false, {}, nullptr);
    const at::Tensor out = allocate(call.sizes, call.dtype, self);
    watch.end(Stage::result);
    compute(Operation::sum, self, call.reduce, false, out, {}, watch);
  }
  std::vector<double> each;
  for (int s = 0; s < kStages; ++s) each.push_back(watch.spent(static_cast<Stage>(s)) / calls);
  return each;
}
#endif

}  // namespace

std::string explained(const Reduction& r, at::Device device, const Tuning& tuning) {
  std::string text = std::string(info(r.in).name);
  if (r.addends == Addends::products) text += std::string(" * ") + info(r.second_dtype).name;
  text += std::string(" -> ") + info(r.out).name +
          (r.addends == Addends::indices
               ? std::string(", the first place of the ") + (r.map == Map::negative ? "smallest" : "largest")
               : std::string(", added in ") + name_of(r.accumulator)) +
          (r.engine == Engine::converted ? ", each element converted first" : "") + "\n" + r.problem.str() + "\n";
  if (r.problem.outputs == 0 || r.problem.length == 0) return text + "nothing to read";
  if (const Explanation* const e = explanation(); e && device.is_cpu())
    if (const Device* const gpu = e->gpu(device)) return text + make_plan(r, *gpu, tuning).str();
  if (device.is_cpu() && r.addends != Addends::values)
    return text + (has_columns(r.problem) ? "neighbouring outputs together, leaf by leaf" : "chunk by chunk");
  if (device.is_cpu()) return text + cpu::explain(r);
#ifdef GPUREDUCE_WITH_CUDA
  if (device.is_cuda()) return text + cuda::plan(r, device, tuning).str();
#endif
  return text + "no plan for " + device.str();
}

void run_on(at::Device device, const Reduction& r, const Tuning& tuning, void (*on_cpu)(const Reduction&)) {
  if (Explanation* const e = explanation())
    return e->tell(
        device, explained(r, device, tuning), "task", [](const Device&) { return std::string(); },
        [&] {
          if (r.addends != Addends::values) on_cpu(r);  // of values explained() has said it
        });
#ifdef GPUREDUCE_WITH_CUDA
  if (device.is_cuda()) {
    const bool found = cuda::run(r, cuda::plan(r, device, tuning), device, tuning);
    TORCH_INTERNAL_ASSERT(found);
    return;
  }
#endif
  on_cpu(r);
}

#ifdef GPUREDUCE_WITH_CUDA
int64_t plans_of(const Reduction& r, at::Device device) {
  return r.problem.outputs == 0 || r.problem.length == 0 ? 0 : count_plans(r, cuda::facts(device));
}
#endif

at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& self) {
#ifdef GPUREDUCE_WITH_CUDA
  if (self.is_cuda()) return at::Tensor(at::detail::empty_cuda(sizes, dtype, self.device(), std::nullopt));
#endif
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

void complete(Reduction& r, InputDims& dims, const DimMask& reduce, const at::Tensor& out, bool keepdim, at::Device device,
              const char* inputs) {
  int64_t o = out.defined() ? out.dim() : 0, step = 1;
  for (int64_t d = static_cast<int64_t>(dims.size()) - 1; d >= 0; --d) {
    if (out.defined() && (!reduce[d] || keepdim)) --o;
    dims[d].reduced = reduce[d];
    dims[d].out_stride = reduce[d] ? 0 : out.defined() ? out.stride(o) : step;
    if (!reduce[d]) step *= dims[d].size;
  }
  try {
    r.problem = make_problem(dims.data(), dims.size(), inputs);
  } catch (const std::invalid_argument& e) {
    TORCH_CHECK(false, e.what());
  }
  r.output = out.defined() ? out.mutable_data_ptr() : nullptr;
#ifdef GPUREDUCE_WITH_CUDA
  if (device.is_cuda()) r.native = cuda::facts(device).native;
#endif
  classify(r);
}

Reduction make_reduction(Operation op, const at::Tensor& self, const DimMask& reduce, at::ScalarType result,
                         const at::Tensor& out, bool keepdim) {
  const bool truth = info(op).typing == Typing::truth;  // a uint8 result of uint8 stores a bool's bytes
  const Canonical call = canonical(op, dtype_of(self.scalar_type(), "an input of dtype"),
                                   truth ? DType::Bool : dtype_of(result, "a result of dtype"));
  Reduction r{};
  r.in = call.in;
  r.out = call.out;
  r.map = call.map;
  r.finish = call.finish;
  r.accumulator = call.accumulator;
  r.negate = is_signed(r.map) && self.is_neg();
  r.conjugate = is_signed(r.map) && !call.real_parts && self.is_conj();
  r.input = self.const_data_ptr();
  const int64_t scale = call.real_parts ? 2 : 1;
  InputDims dims(self.dim());
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = {self.size(d), self.stride(d) * scale, 0, false, 0};
  complete(r, dims, reduce, out, keepdim, self.device(), "sum: the input has");
  return r;
}

}  // namespace gpureduce

TORCH_LIBRARY(gpureduce, m) {
  using namespace gpureduce;
  for (size_t i = 0; i < Which::kCount; ++i) {
    const Which which = Which::of(i);
    const char* const name = operator_name(which);
    if (name == nullptr) continue;
    define_reduction_with_out<TableReduction>(m, which);
    put(m, Key::FuncTorchBatched, name, kernel_of(which, &batched));
    if (!which.exact) define_tuned<TableReduction>(m, std::string("_") + name, "Tensor", which);
  }
  define_planning<planned>(m, "", TableReduction::kArguments);
  m.def("_stages(Tensor self, int[1]? dim, int calls) -> float[]");  // for bench/grid.py
#ifdef GPUREDUCE_WITH_CUDA
  put(m, Key::CUDA, "_stages", &stages);
#endif
}
