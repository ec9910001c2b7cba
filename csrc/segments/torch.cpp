// Reductions of segments: runs of unequal lengths, packed along one dim, each with the bits of a reduction of its own. And
// _segment_spread, the transpose of their sum, which gradients call: each element gets the value of its segment.
#include "torch.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>

#ifdef GPUREDUCE_WITH_CUDA
#include "segments.h"
#endif

#include "../core/plan/segments.h"
#include "../core/torch/applied.h"
#include "../core/torch/explain.h"
#include "../core/torch/gradient.h"
#include "../core/torch/plumbing.h"
#include "../core/torch/workspace.h"
#include "cpu.h"
#include "torch_numbered.h"

namespace gpureduce {

namespace {

// The operators over segments, and their functions, which errors name. An operator that begins with _ serves the function of
// that name, which has no dtype=.
struct SegmentFunction {
  Which which;
  const char *name, *title;
};
constexpr SegmentFunction kFunctions[] = {
    {Operation::sum, "segment_sum", "segment_sum"},
    {{Operation::sum, /*exact=*/true}, "exact_segment_sum", "segment_sum"},
    {Operation::mean, "segment_mean", "segment_mean"},
    {Operation::prod, "segment_prod", "segment_prod"},
    {Operation::_amax, "_segment_amax", "segment_amax"},
    {Operation::_amin, "_segment_amin", "segment_amin"},
    {Operation::_logsumexp, "_segment_logsumexp", "segment_logsumexp"},
};

const char* title_of(Which which) {
  for (const SegmentFunction& each : kFunctions)
    if (each.which == which) return each.title;
  return nullptr;
}

constexpr const char* kSpread = "_segment_spread";
constexpr const char* kProdBackward = "_segment_prod_backward";

// --- checks -----------------------------------------------------------------------------------------------------------------

constexpr const char* kNotLengths =
    ". If these are lengths, the offsets are torch.nn.functional.pad(lengths.cumsum(0), (1, 0))";

}  // namespace

bool check_values(const Segments& s, const char* function) {
  const char* const hint = s.offset(0) == 0 ? "" : kNotLengths;
  int64_t before = 0, total = 0;
  for (int64_t i = 0; i <= s.count; ++i) {
    const int64_t here = s.offset(i);
    TORCH_CHECK(here >= 0 && here <= s.length, function, "(): offsets: expected each in [0, ", s.length,
                "], the size of dim, but entry ", i, " is ", here, hint);
    TORCH_CHECK(here >= before, function, "(): offsets: expected each to be no less than the one before, but entry ", i, " is ",
                here, " after ", before, hint);
    before = here;
    total += total <= s.length ? here : 0;
  }
  return s.offset(0) != 0 && total == s.length;
}

namespace {

Segments segments_of(const at::Tensor& data, const at::Tensor& ends, int64_t dim) {
  Segments s;
  s.offsets = ends.const_data_ptr();
  s.wide = ends.scalar_type() == at::kLong;
  s.count = ends.size(0) - 1;
  s.length = data.size(dim);
  return s;
}

}  // namespace

int64_t segment_dim(const char* name, const char* argument, int64_t rank, int64_t dim) {
  TORCH_CHECK(rank > 0, name, ": ", argument, ": expected a tensor of at least one dim, but got one of none");
  const int64_t d = at::maybe_wrap_dim(dim, rank);
  TORCH_CHECK(d == 0 || d == rank - 1, name, ": dim: expected the first or the last of ", rank, " dims, but got ", dim);
  return d;
}

void check_offsets(const char* name, const at::Tensor& offsets, c10::Device device) {
  check_integers(name, ": offsets", offsets);
  TORCH_CHECK(offsets.sym_size(0).is_symbolic() || offsets.sym_size(0) >= 1, name,
              ": offsets: expected one more than there are segments, but got none");
  check_device(name, ": offsets", offsets, device, "the data");
}

at::Tensor checked_ends(const char* name, const at::Tensor& data, const at::Tensor& offsets, int64_t dim, bool warns) {
  const at::Tensor ends = data.is_cpu() ? own_copy(offsets) : plain(offsets);
  const Segments s = segments_of(data, ends, dim);
  if (data.is_cpu() && check_values(s, name) && warns)
    TORCH_WARN(name, "(): offsets: they do not begin with 0, and their sum is ", s.length, ", the size of dim", kNotLengths);
#ifdef GPUREDUCE_WITH_CUDA
  if (data.is_cuda() && s.length == 0) at::_assert_async(ends.eq(0).all(), "offsets: each must be in [0, the size of dim]");
#endif
  return ends;
}

// --- backends ---------------------------------------------------------------------------------------------------------------

void run_segments(const Segments& segments, at::Device device) {
  if (Explanation* const e = explanation())
    return e->tell(
        device, cuda::text_of(segments), "task",
        [&](const Device& gpu) { return cuda::plan_segments(segments, gpu).str(segments); }, [&] { cpu::run(segments); });
#ifdef GPUREDUCE_WITH_CUDA
  if (!device.is_cuda()) return cpu::run(segments);
  const Device& facts = cuda::facts(device);
  const cuda::SegmentPlan plan = cuda::plan_segments(segments, facts);
  cuda::with_workspace(device, plan.workspace_bytes, [&](void* workspace, cudaStream_t stream) {
    return cuda::run_segments({segments, plan, facts, workspace, {stream, facts.early}});
  });
#else
  cpu::run(segments);
#endif
}

namespace {

Reduction reduction_of(Operation op, const at::Tensor& data, int64_t dim, at::ScalarType dtype, const at::Tensor& out) {
  DimMask reduce(data.dim(), false);
  reduce[dim] = true;
  return make_reduction(op, data, reduce, dtype, out, /*keepdim=*/true);
}

void run(Operation op, const at::Tensor& data, const at::Tensor& ends, int64_t dim, const at::Tensor& out);

void run_logsumexp(const at::Tensor& data, const at::Tensor& ends, int64_t dim, const at::Tensor& out) {
  static const auto finish = find<at::Tensor(const at::Tensor&, const at::Tensor&, at::ScalarType)>("_finish_logsumexp");
  const DType in = dtype_of(data.scalar_type(), "an input of dtype");
  const at::ScalarType computed = exponents::dtype_of(in) == DType::Float ? at::kFloat : at::kDouble;
  const SegmentExponentials found = segment_exponentials(data, ends, dim, computed);
  out.copy_(finish.call(found.sums, found.largest, out.scalar_type()));
}

}  // namespace

Segments make_segments(Operation op, const at::Tensor& data, const at::Tensor& ends, int64_t dim, const at::Tensor& out) {
  Segments s = segments_of(data, ends, dim);
  s.reduction = reduction_of(op, data, dim, out.scalar_type(), out);
  s.stride = data.stride(dim) * (static_cast<int64_t>(data.itemsize()) / info(s.reduction.in).size);
  s.result_pitch = out.stride(dim);
  return s;
}

namespace {

// Runs the kernels of an operation, or of sums of e^(x - largest) if `largest` is defined, which lies as `out` does.
void run_kernels(Operation op, const at::Tensor& data, const at::Tensor& ends, int64_t dim, const at::Tensor& out,
                 const at::Tensor& largest = {}) {
  Segments s = make_segments(op, data, ends, dim, out);
  if (largest.defined()) {
    s.reduction.addends = Addends::exponents;
    s.reduction.largest = largest.const_data_ptr();
  }
  run_segments(s, data.device());
}

// Writes the results of segments.
void run(Operation op, const at::Tensor& data, const at::Tensor& ends, int64_t dim, const at::Tensor& out) {
  if (out.numel() == 0) return;
  if (data.numel() == 0) {  // each segment is empty, as one beside a single element
    const at::Tensor one = at::empty({1}, out.options());
    run(op, at::zeros({1}, data.options()), at::zeros({2}, ends.options()), 0, one);
    out.copy_(one);
    return;
  }
  if (info(op).map == Map::exponent) run_logsumexp(data, ends, dim, out);
  else run_kernels(op, data, ends, dim, out);
}

}  // namespace

at::Tensor reduce_segments(Operation op, const at::Tensor& data, const at::Tensor& ends, int64_t dim, at::ScalarType dtype) {
  at::Tensor result = allocate(with_size<int64_t>(data, dim, ends.size(0) - 1), dtype, data);
  run(op, data, ends, dim, result);
  return result;
}

SegmentExponentials segment_exponentials(const at::Tensor& data, const at::Tensor& ends, int64_t dim, at::ScalarType computed) {
  // The largest of an empty segment must be -inf, which not all dtypes have.
  const bool as_it_is = at::isFloatingType(data.scalar_type()) && data.itemsize() > 1 &&
                        (computed == at::kFloat || data.scalar_type() == at::kDouble);
  const at::Tensor x = as_it_is ? data : data.to(computed);
  const at::Tensor largest = reduce_segments(Operation::_amax, x, ends, dim, computed);
  const at::Tensor sums = allocate(largest.sizes(), computed, data);
  if (sums.numel() > 0) run_kernels(Operation::sum, x, ends, dim, sums, largest);
  return {largest, sums};
}

namespace {

// A call after its checks: the wrapped dim of the segments.
template <class Int>
struct Call {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  int64_t dim;
};

// The dtype of the results. The errors name the function.
at::ScalarType result_of(const char* function, Operation op, const at::Tensor& data, OptionalDtype dtype,
                         const at::Tensor* out) {
  try {
    return out ? out_type(op, data, dtype, *out) : result_type(op, data.scalar_type(), dtype);
  } catch (const c10::Error& error) {
    rename(error, function);
    throw;
  }
}

struct SegmentReduction {
  Which which;

  const char* name() const {
    for (const SegmentFunction& each : kFunctions)
      if (each.which == which) return each.name;
    return nullptr;
  }
  static constexpr const char* kArguments = "(Tensor data, Tensor offsets, int dim=0, *, ScalarType? dtype=None";
  bool out_has_dtype() const { return info(which.op).has_dtype(); }
  bool has_gradient() const { return true; }
  bool autocasts(c10::DeviceType device) const {
    return device == at::kCUDA ? info(which.op).autocasts : info(which.op).autocasts_on_cpu();
  }
  using Function = at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, OptionalDtype);

  template <class Int>
  Call<Int> check(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype,
                  const at::Tensor* out) const {
    const char* const title = title_of(which);
    Call<Int> call;
    call.dtype = result_of(title, which.op, data, dtype, out);
    call.dim = segment_dim(title, "data", data.dim(), dim);
    check_offsets(title, offsets, data.device());
    dtype_of(data.scalar_type(), "an input of dtype", title, takes_complex(which.op));
    dtype_of(call.dtype, "a result of dtype", title, takes_complex(which.op));
    if (out) check_out_place(*out, data.device());
    call.sizes = with_size<Int>(data, call.dim, sizes_of<Int>(offsets)[0] - 1);
    return call;
  }

  void refuse(const Call<int64_t>& call, const at::Tensor& data, const at::Tensor& offsets, int64_t, OptionalDtype) const {
    checked_ends(title_of(which), data, offsets, call.dim, /*warns=*/false);
    if (data.numel() > 0) reduction_of(which.op, data, call.dim, call.dtype, {});
  }

  void compute(const Call<int64_t>& call, const at::Tensor& data, const at::Tensor& offsets, int64_t, OptionalDtype,
               const at::Tensor& out, const Tuning&) const {
    warn_if_imaginary_is_lost(data.scalar_type(), call.dtype);
    const at::Tensor ends = checked_ends(title_of(which), data, offsets, call.dim, /*warns=*/true);
    const bool integral = at::isIntegralType(call.dtype, /*includeBool=*/true);
    if (which.exact && !integral) add_segments_exactly(data, ends, call.dim, out);
    else run(which.op, data, ends, call.dim, out);
  }
};

using OverSegments = Plumbing<SegmentReduction>;
const auto& over_segments(Which which) { return OverSegments::functional(which); }

// --- the transpose ----------------------------------------------------------------------------------------------------------

const auto& spread_segments() {
  static const auto handle = find<at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymInt, int64_t)>(kSpread);
  return handle;
}

// The integer dtype of the same size, if there is one.
at::ScalarType bits_of(at::ScalarType type) {
  switch (c10::elementSize(type)) {
    case 1: return at::kByte;
    case 2: return at::kShort;
    case 4: return at::kInt;
    case 8: return at::kLong;
    default: return type;
  }
}

}  // namespace

SegmentPlaces::SegmentPlaces(const at::Tensor& offsets, int64_t size, int64_t dim, int64_t rank)
    : dim_(dim), rank_(rank), size_(size), count_(offsets.size(0) - 1), number_(number_entries(offsets, size)) {
  if (number_.defined()) return;
  const at::Tensor places = at::arange(size, offsets.options());
  number_ = at::searchsorted(offsets, places, /*out_int32=*/false, /*right=*/true).sub_(1);
  number_.masked_fill_(number_.eq(count_), -1);
}

at::Tensor SegmentPlaces::select(const at::Tensor& values) const {
  const at::Tensor found = at::empty(with_size(values, dim_, size_), values.options());
  if (count_ == 0) return found.zero_();
  if (copy_numbered(values, dim_, number_, found, /*zeros=*/true)) return found;
  // As integers, since index_select and masked_fill_ do not take all dtypes.
  const at::ScalarType type = values.scalar_type(), bits = bits_of(type);
  const at::Tensor all = values.view(bits).index_select(dim_, number_.clamp(0));
  return all.masked_fill_(along(number_.lt(0), dim_, rank_), 0).view(type);
}

namespace {

// From (..., segments, ...) to (..., size, ...): each element gets the value of its segment, or 0 outside of all segments.
at::Tensor spread(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim) {
  const int64_t d = segment_dim(kSpread, "input", input.dim(), dim), count = offsets.size(0) - 1;
  check_offsets(kSpread, offsets, input.device());
  TORCH_CHECK(input.size(d) == count, kSpread, ": input: expected ", count, " segments, but got ", input.size(d));
  return SegmentPlaces(offsets, size.expect_int(), d, input.dim()).select(input);
}

at::Tensor spread_meta(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim) {
  const int64_t d = segment_dim(kSpread, "input", input.dim(), dim);
  check_offsets(kSpread, offsets, input.device());
  return at::empty_symint(with_size(input, d, std::move(size)), input.options());
}

}  // namespace

at::Tensor call_segment_sum(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  return over_segments(Operation::sum).call(data, offsets, dim, dtype);
}

at::Tensor call_segment_spread(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim) {
  return spread_segments().call(input, offsets, std::move(size), dim);
}

at::Tensor inside_segments(const at::Tensor& offsets, c10::SymInt size, int64_t dim, int64_t rank) {
  const at::Tensor ones = at::ones_like(offsets.slice(0, 1), offsets.options().dtype(at::kBool));
  return along(call_segment_spread(ones, offsets, std::move(size), 0), dim, rank);
}

namespace {

// --- gradients --------------------------------------------------------------------------------------------------------------

// The facts that a backward pass needs.
struct SegmentFacts {
  c10::SymInt size;
  int64_t dim = 0;
  at::ScalarType dtype = at::kFloat;

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.size);
    f(self.dim);
    f(self.dtype);
  }
};

SegmentFacts saved_of(const at::Tensor& input, int64_t dim, at::ScalarType dtype) {
  const int64_t d = at::maybe_wrap_dim(dim, input.dim());
  return SegmentFacts{input.sym_size(d), d, dtype};
}

at::Tensor to_dtype(at::Tensor grad, at::ScalarType dtype) { return grad.scalar_type() == dtype ? grad : grad.to(dtype); }

at::Tensor lengths_of(const at::Tensor& offsets, int64_t dim, int64_t rank) { return along(offsets.diff(), dim, rank); }

}  // namespace

at::Tensor over_lengths(const at::Tensor& grad, const at::Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  return apply(Formula::ratio, grad, {{}, lengths_of(offsets, dim, grad.dim())},
               grad.is_complex() ? dtype : c10::toRealValueType(dtype));
}

namespace {

// The gradient of a sum or a mean.
at::Tensor linear_gradient(Operation op, at::Tensor grad, const at::Tensor& offsets, const SegmentFacts& input) {
  if (grad.is_complex() && !at::isComplexType(input.dtype)) grad = at::real(grad);
  if (op == Operation::mean) grad = over_lengths(grad, offsets, input.dim, input.dtype);
  return call_segment_spread(to_dtype(std::move(grad), input.dtype), offsets, input.size, input.dim);
}

using ProdBackward = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType);
const auto& prod_backward_operator() {
  static const auto handle = find<ProdBackward>(kProdBackward);
  return handle;
}

// The gradient of the data, rounded once to `dtype`. The formulas are the ones of dense reductions (autograd.cpp).
at::Tensor gradient_of(Operation op, const at::Tensor& grad, const at::Tensor& data, const at::Tensor& result,
                       const at::Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  if (op == Operation::prod) return prod_backward_operator().call(grad, data, offsets, dim, dtype);
  const c10::SymInt size = data.sym_size(dim);
  const auto spread = [&](const at::Tensor& x) { return call_segment_spread(x, offsets, size, dim); };
  if (op == Operation::_logsumexp) {
    const at::Tensor inside = inside_segments(offsets, size, dim, data.dim());
    return apply(Formula::exponent, data, {spread(grad), spread(result), inside}, dtype);
  }
  // All largest or smallest elements share the gradient.
  const at::Tensor extremum = spread(result.detach());
  const at::Tensor ties =
      call_segment_sum(without_float8(compared(data)).eq(without_float8(extremum)), offsets, dim, at::kLong);
  const bool wide = data.scalar_type() == at::kDouble || grad.scalar_type() == at::kDouble;
  const at::Tensor share = apply(Formula::ratio, grad, {{}, ties}, wide ? at::kDouble : at::kFloat);
  return apply(Formula::share, data, {spread(share), extremum}, dtype);
}

// The tangent of the result, from a tangent of the data.
at::Tensor tangent_of(Operation op, const at::Tensor& tangent, const at::Tensor& data, const at::Tensor& result,
                      const at::Tensor& offsets, int64_t dim) {
  const at::ScalarType wide = at::isFloat8Type(data.scalar_type()) ? at::kFloat : at::toOpMathType(data.scalar_type());
  const at::Tensor change = gradient_of(op, at::ones_like(result), data, result, offsets, dim, wide);
  return call_segment_sum(change * tangent.to(wide), offsets, dim, result.scalar_type());
}

struct ReductionFacts : SegmentFacts {
  int64_t which = 0;  // Which::number()

  template <class Self, class F>
  static void each(Self& self, F f) {
    SegmentFacts::each(self, f);
    f(self.which);
  }
};

// keeps: the gradient depends on the elements.
template <bool keeps>
struct SegmentRule : RuleOf<ReductionFacts> {
  static constexpr auto kKept = [] {
    if constexpr (keeps) return std::array<bool, 3>{false, false, true};  // offsets, data, and the result if needed
    else return std::array<bool, 1>{false};
  }();

  static std::string name(const ReductionFacts& input) {
    const Which which = Which::of(input.which);
    return std::string("gpureduce_") + (which.exact ? "exact_" : "") + title_of(which) + "_backward";
  }

  template <class Tensors>
  static variable_list gradients(variable_list grads, const ReductionFacts& input, const Tensors& kept) {
    if (!grads[0].defined()) return variable_list(2);
    const Operation op = Which::of(input.which).op;
    if constexpr (keeps) return {gradient_of(op, grads[0], kept[1], kept[2], kept[0], input.dim, input.dtype), at::Tensor()};
    else return {linear_gradient(op, std::move(grads[0]), kept[0], input), at::Tensor()};
  }
};

template <bool keeps>
at::Tensor differentiable(Which which, c10::DispatchKeySet keys, const at::Tensor& data, const at::Tensor& offsets, int64_t dim,
                          OptionalDtype dtype) {
  return with_derivatives<SegmentRule<keeps>>(
      std::tie(data, offsets),
      [&] { return over_segments(which).redispatch(keys & c10::after_autograd_keyset, data, offsets, dim, dtype); },
      [&] { return ReductionFacts{saved_of(data, dim, data.scalar_type()), static_cast<int64_t>(which.number())}; },
      [&](const at::Tensor& result) {
        if constexpr (keeps) return std::array{offsets, data, info(which.op).keeps_result() ? result : at::Tensor()};
        else return std::array{offsets};
      },
      [&](const at::Tensor& result) {
        const at::Tensor& tangent = data._fw_grad(/*level=*/0);
        if constexpr (keeps)
          return tangent_of(which.op, tangent, data._fw_primal(/*level=*/0), result, offsets,
                            at::maybe_wrap_dim(dim, data.dim()));
        else return over_segments(which).call(tangent, offsets, dim, dtype);
      });
}

at::Tensor reduce_differentiable(Which which, c10::DispatchKeySet keys, const at::Tensor& data, const at::Tensor& offsets,
                                 int64_t dim, OptionalDtype dtype) {
  if (!info(which.op).keeps_input()) return differentiable<false>(which, keys, data, offsets, dim, dtype);
  if (which.op == Operation::_logsumexp) {  // a result of two bytes has too few digits for the gradient
    const at::ScalarType type = result_type(which.op, data.scalar_type(), dtype);
    if (is_tracked(data) && c10::elementSize(type) == 2)
      return rounded(over_segments(which).call(data, offsets, dim, at::kDouble), type);
  }
  return differentiable<true>(which, keys, data, offsets, dim, dtype);
}

struct SpreadRule : RuleOf<SegmentFacts> {
  static constexpr std::array<bool, 1> kKept = {false};  // the offsets

  static std::string name() { return "gpureduce_segment_spread_backward"; }

  static variable_list gradients(variable_list grads, const SegmentFacts& input, const std::array<at::Tensor, 1>& kept) {
    if (!grads[0].defined()) return variable_list(2);
    return {call_segment_sum(grads[0], kept[0], input.dim, input.dtype), at::Tensor()};
  }
};

at::Tensor spread_differentiable(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size,
                                 int64_t dim) {
  return with_derivatives<SpreadRule>(
      std::tie(input, offsets),
      [&] { return spread_segments().redispatch(keys & c10::after_autograd_keyset, input, offsets, size, dim); },
      [&] { return saved_of(input, dim, input.scalar_type()); }, [&](const at::Tensor&) { return std::array{offsets}; },
      [&](const at::Tensor&) { return spread_segments().call(input._fw_grad(/*level=*/0), offsets, size, dim); });
}

// --- the gradient of products -----------------------------------------------------------------------------------------------

void check_prod_backward(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& offsets, int64_t dim) {
  check_offsets(kProdBackward, offsets, data.device());
  const int64_t d = segment_dim(kProdBackward, "data", data.dim(), dim);
  const auto sizes = with_size<c10::SymInt>(data, d, offsets.sym_size(0) - 1);
  TORCH_CHECK(grad.sym_sizes() == c10::SymIntArrayRef(sizes), kProdBackward, ": grad: expected the results' sizes, ",
              c10::SymIntArrayRef(sizes), ", but got ", grad.sym_sizes());
}

// grad times the product of all other elements of the segment, for each element; 0 outside of all segments.
at::Tensor prod_backward(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& offsets, int64_t dim,
                         at::ScalarType dtype) {
  check_prod_backward(grad, data, offsets, dim);
  const int64_t d = at::maybe_wrap_dim(dim, data.dim());
  const at::Tensor ends = checked_ends(kProdBackward, data, offsets, d, /*warns=*/false);
  const SegmentPlaces places(ends, data.size(d), d, data.dim());
  const at::Tensor product = reduce_segments(Operation::_nonzero_prod, data, ends, d, at::kDouble);
  const at::Tensor zeros =
      lengths_of(ends, d, data.dim()) - reduce_segments(Operation::_count_nonzero, data, ends, d, at::kLong);
  // The formula subtracts from the number of all elements the number of those that are not 0. From 2 - zeros that gives the
  // zeros, and 2 outside of segments, where the formula's result is 0.
  return apply(Formula::others, data, {places.select(grad), places.select(product), places.select(2 - zeros), 2}, dtype);
}

at::Tensor prod_backward_meta(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& offsets, int64_t dim,
                              at::ScalarType dtype) {
  check_prod_backward(grad, data, offsets, dim);
  return at::empty_like(data, data.options().dtype(dtype));
}

// A product, and its change if each element changes by its weight.
struct Changing { at::Tensor value, change; };
Changing operator*(const Changing& a, const Changing& b) {
  return {a.value * b.value, a.value * b.change + a.change * b.value};
}

// For each element, the product of the elements before it in its segment, in as many steps as the size has binary digits:
// neighbours of 1, 2, 4 ... places are multiplied. `number`: the segment of each place.
Changing products_before(const Changing& x, const at::Tensor& number, int64_t dim) {
  const int64_t size = number.sym_size(0).guard_int(__FILE__, __LINE__);
  const auto moved = [&](const Changing& p, int64_t by) {  // 1 where that leaves the segment
    const at::Tensor same = at::cat({at::zeros_like(number.narrow(0, 0, by), number.options().dtype(at::kBool)),
                                     number.narrow(0, by, size - by).eq(number.narrow(0, 0, size - by))});
    const auto move = [&](const at::Tensor& t, double edge) {
      const at::Tensor filled = at::full_like(t.narrow(dim, 0, by), edge);
      const at::Tensor all = at::cat({filled, t.narrow(dim, 0, size - by)}, dim);
      return at::where(along(same, dim, t.dim()), all, at::full_like(all, edge));
    };
    return Changing{move(p.value, 1), move(p.change, 0)};
  };
  Changing p = moved(x, 1);
  for (int64_t by = 1; by < size; by *= 2) p = moved(p, by) * p;
  return p;
}

// For each element k: the sum, over all other elements i of its segment, of w_i times the product of all elements of the
// segment except i and k; 0 outside of all segments. It is made of operators that torch differentiates.
at::Tensor products_without(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets, int64_t dim) {
  if (TORCH_GUARD_OR_FALSE(x.sym_numel().sym_eq(0))) return at::zeros_like(x);
  static const auto first_order = find<at::Tensor(const at::Tensor&, std::string_view)>("_first_order");
  if (x.key_set().has(Key::Python)) first_order.call(x.detach(), "segment_prod");
  const c10::SymInt size = x.sym_size(dim);
  const at::Tensor inside = inside_segments(offsets, size, dim, x.dim());
  const at::Tensor number = at::searchsorted(offsets, at::arange(size, offsets.options()), /*out_int32=*/false, /*right=*/true);
  const Changing all{at::where(inside, x, at::ones_like(x)), at::where(inside, w, at::zeros_like(w))};
  const Changing flipped{all.value.flip(dim), all.change.flip(dim)};
  const Changing before = products_before(all, number, dim), behind = products_before(flipped, number.flip(0), dim);
  const at::Tensor found = (before * Changing{behind.value.flip(dim), behind.change.flip(dim)}).change;
  return at::where(inside, found, at::zeros_like(found));
}

struct ProdBackwardRule : RuleOf<SegmentFacts> {
  static constexpr std::array<bool, 3> kKept = {false, false, false};  // grad, data, offsets

  static std::string name() { return "gpureduce_segment_prod_backward_backward"; }

  static variable_list gradients(variable_list grads, const SegmentFacts& saved, const std::array<at::Tensor, 3>& kept) {
    if (!grads[0].defined()) return variable_list(3);
    const auto& [grad, data, offsets] = kept;
    const at::Tensor given = grads[0].to(at::kDouble), wide = grad.to(at::kDouble), x = data.to(at::kDouble);
    const at::Tensor others = prod_backward_operator().call(at::ones_like(wide), x, offsets, saved.dim, at::kDouble);
    const at::Tensor all = call_segment_spread(wide, offsets, saved.size, saved.dim);
    return {rounded(call_segment_sum(given * others, offsets, saved.dim), grad.scalar_type()),
            rounded(all * products_without(x, given, offsets, saved.dim), data.scalar_type()), at::Tensor()};
  }
};

at::Tensor prod_backward_differentiable(c10::DispatchKeySet keys, const at::Tensor& grad, const at::Tensor& data,
                                        const at::Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  return with_derivatives<ProdBackwardRule>(
      std::tie(grad, data, offsets),
      [&] { return prod_backward_operator().redispatch(keys & c10::after_autograd_keyset, grad, data, offsets, dim, dtype); },
      [&] { return saved_of(data, dim, dtype); }, [&](const at::Tensor&) { return std::array{grad, data, offsets}; },
      [&](const at::Tensor&) {
        const int64_t d = at::maybe_wrap_dim(dim, data.dim());
        const at::Tensor x = data._fw_primal(/*level=*/0).to(at::kDouble), g = grad._fw_primal(/*level=*/0).to(at::kDouble);
        const auto spread = [&](const at::Tensor& t) { return call_segment_spread(t, offsets, x.sym_size(d), d); };
        at::Tensor change = at::zeros_like(x);
        if (const at::Tensor& t = data._fw_grad(/*level=*/0); t.defined())
          change = change + spread(g) * products_without(x, t.to(at::kDouble), offsets, d);
        if (const at::Tensor& t = grad._fw_grad(/*level=*/0); t.defined())
          change = change + prod_backward_operator().call(t.to(at::kDouble), x, offsets, d, at::kDouble);
        return rounded(change, dtype);
      });
}

// --- vmap -------------------------------------------------------------------------------------------------------------------

at::Tensor reduce_batched(Which which, const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  return batched_segments(title_of(which), std::array{data}, offsets, dim,
                          [&](const auto& inputs, const at::Tensor& ends, int64_t d) {
                            return over_segments(which).call(inputs[0], ends, d, dtype);
                          });
}

at::Tensor spread_batched(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim) {
  return batched_segments(kSpread, std::array{input}, offsets, dim, [&](const auto& inputs, const at::Tensor& ends, int64_t d) {
    return spread_segments().call(inputs[0], ends, size, d);
  });
}

at::Tensor prod_backward_batched(const at::Tensor& grad, const at::Tensor& data, const at::Tensor& offsets, int64_t dim,
                                 at::ScalarType dtype) {
  return batched_segments(kProdBackward, std::array{grad, data}, offsets, dim,
                          [&](const auto& inputs, const at::Tensor& ends, int64_t d) {
                            return prod_backward_operator().call(inputs[0], inputs[1], ends, d, dtype);
                          });
}

// --- registration -----------------------------------------------------------------------------------------------------------

at::Tensor without_dtype(Which which, const at::Tensor& data, const at::Tensor& offsets, int64_t dim) {
  return over_segments(which).call(data, offsets, dim, std::nullopt);
}

at::Tensor& without_dtype_out(Which which, const at::Tensor& data, const at::Tensor& offsets, int64_t dim, at::Tensor& out) {
  return OverSegments::out_variant(which).call(data, offsets, dim, std::nullopt, out);
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  for (const auto& [which, name, title] : kFunctions) {
    define_reduction_with_out<SegmentReduction>(m, which);
    put(m, Key::Autograd, name, kernel_of(which, &reduce_differentiable));
    put(m, Key::FuncTorchBatched, name, kernel_of(which, &reduce_batched));
    if (name[0] == '_')
      define_composite(m, title, "(Tensor data, Tensor offsets, int dim=0", kernel_of(which, &without_dtype),
                       kernel_of(which, &without_dtype_out));
  }
  define_operator<spread, spread_meta, spread_differentiable, spread_batched>(
      m, "_segment_spread(Tensor input, Tensor offsets, SymInt size, int dim=0) -> Tensor");
  define_operator<prod_backward, prod_backward_meta, prod_backward_differentiable, prod_backward_batched>(
      m, "_segment_prod_backward(Tensor grad, Tensor data, Tensor offsets, int dim, ScalarType dtype) -> Tensor");
}
