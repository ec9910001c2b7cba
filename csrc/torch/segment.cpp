// segment_sum and segment_mean: sums of runs of unequal lengths, packed along one dim, each with the bits of a sum of its own.
// And _segment_spread, the transpose, which gradients call: each element gets the value of its segment.
#include "../problem/segment.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "../cuda/schedule/segment.h"
#endif

#include <limits>

#include "../cpu/segment.h"
#include "applied.h"
#include "gradient.h"
#include "results.h"

namespace gpureduce {

namespace {

using Sizes = c10::SmallVector<c10::SymInt, kCommonRank>;
using SegmentFunction = at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, OptionalDtype);
using SegmentOut = at::Tensor&(const at::Tensor&, const at::Tensor&, int64_t, OptionalDtype, at::Tensor&);
using Spread = at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymInt, int64_t);

template <Operation op>
constexpr const char* kName = op == Operation::sum ? "segment_sum" : "segment_mean";

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name, const char* overload) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("gpureduce::") + name).c_str(), overload)
      .typed<Signature>();
}

template <Operation op>
const c10::TypedOperatorHandle<SegmentFunction>& segments() {
  static const auto handle = find<SegmentFunction>(kName<op>, "");
  return handle;
}

template <Operation op>
const c10::TypedOperatorHandle<SegmentOut>& segments_out() {
  static const auto handle = find<SegmentOut>(kName<op>, "out");
  return handle;
}

const c10::TypedOperatorHandle<Spread>& spread_segments() {
  static const auto handle = find<Spread>("_segment_spread", "");
  return handle;
}

// --- checks -----------------------------------------------------------------------------------------------------------------

// The dim of the segments, which must be the first or the last one.
int64_t segment_dim(const char* name, const char* argument, int64_t rank, int64_t dim) {
  TORCH_CHECK(rank > 0, name, ": ", argument, ": expected a tensor of at least one dim, but got one of none");
  const int64_t d = at::maybe_wrap_dim(dim, rank);
  TORCH_CHECK(d == 0 || d == rank - 1, name, ": dim: expected the first or the last of ", rank, " dims, but got ", dim);
  return d;
}

constexpr const char* kNotLengths =
    ". If these are lengths, the offsets are torch.nn.functional.pad(lengths.cumsum(0), (1, 0))";

// Raises an error that names the first offset that is less than the one before or outside of the dim. Warns if the offsets look
// like lengths.
void check_values(const Segments& s, const char* function) {
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
  if (s.offset(0) != 0 && total == s.length) {
    TORCH_WARN(function, "(): offsets: they do not begin with 0, and their sum is ", s.length, ", the size of dim",
               kNotLengths);
  }
}

void check_offsets(const char* name, const at::Tensor& offsets, c10::Device device) {
  TORCH_CHECK(offsets.scalar_type() == at::kLong || offsets.scalar_type() == at::kInt, name,
              ": offsets: expected a tensor of int64 or int32, but got ", offsets.scalar_type());
  TORCH_CHECK(offsets.layout() == at::kStrided, name, ": offsets: expected a strided tensor, but got ", offsets.layout());
  TORCH_CHECK(offsets.dim() == 1, name, ": offsets: expected a tensor of one dim, but got ", offsets.dim());
  TORCH_CHECK(offsets.sym_size(0).is_symbolic() || offsets.sym_size(0) >= 1, name,
              ": offsets: expected one more than there are segments, but got none");
  TORCH_CHECK(offsets.device() == device, name, ": offsets: expected to be on ", device, " as the data, but is on ",
              offsets.device());
}

Sizes with_size(const at::Tensor& tensor, int64_t dim, c10::SymInt size) {
  Sizes sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
  sizes[dim] = std::move(size);
  return sizes;
}

at::Tensor empty(const Sizes& sizes, at::ScalarType dtype, const at::Tensor& like) {
  return at::empty_symint(sizes, at::TensorOptions().dtype(dtype).device(like.device()));
}

// The wrapped dim of a call, after all checks that do not read the offsets.
template <Operation op>
int64_t check(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, at::ScalarType result) {
  const int64_t d = segment_dim(kName<op>, "data", data.dim(), dim);
  check_offsets(kName<op>, offsets, data.device());
  dtype_of(data.scalar_type(), "an input of dtype", kName<op>);
  dtype_of(result, "a result of dtype", kName<op>);
  return d;
}

// --- backends ---------------------------------------------------------------------------------------------------------------

// Writes the results if there are no elements at all.
void fill(Operation op, const at::Tensor& out) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (op == Operation::sum) out.zero_();
  else if (out.is_complex()) out.fill_(c10::complex<double>(nan, nan));
  else out.fill_(nan);
}

#ifdef GPUREDUCE_WITH_CUDA
void run_cuda(const Segments& segments, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const Device& facts = cuda::facts(device);
  const cuda::SegmentPlan plan = cuda::plan_segments(segments, facts);
  const at::Tensor workspace(at::detail::empty_cuda({plan.workspace_bytes}, at::kByte, device, std::nullopt));
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device.index());
  C10_CUDA_CHECK(cuda::run_segments({segments, plan, facts, workspace.mutable_data_ptr(), {stream, facts.early}}));
}
#endif

// `out` has the right sizes, and its elements do not overlap.
void compute(Operation op, const at::Tensor& data, const at::Tensor& offsets, int64_t dim, const at::Tensor& out) {
  if (at::isComplexType(data.scalar_type()) && !at::isComplexType(out.scalar_type()) && out.scalar_type() != at::kBool) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
  const at::Tensor ends = offsets.resolve_neg().contiguous();
  Segments s;
  s.offsets = ends.const_data_ptr();
  s.wide = ends.scalar_type() == at::kLong;
  s.count = ends.size(0) - 1;
  s.length = data.size(dim);
  if (data.is_cpu()) check_values(s, op == Operation::sum ? kName<Operation::sum> : kName<Operation::mean>);
  if (data.numel() == 0) {
#ifdef GPUREDUCE_WITH_CUDA
    if (data.is_cuda() && s.length == 0) at::_assert_async(ends.eq(0).all(), "offsets: each must be in [0, the size of dim]");
#endif
    return fill(op, out);
  }
  DimMask reduce;
  reduce.resize(data.dim(), false);
  reduce[dim] = true;
  s.reduction = make_reduction(op, data, reduce, out.scalar_type(), out, /*keepdim=*/true);
  s.stride = data.stride(dim) * (static_cast<int64_t>(data.itemsize()) / info(s.reduction.in).size);
  s.result_pitch = out.stride(dim);
  if (s.count == 0) return;
#ifdef GPUREDUCE_WITH_CUDA
  if (data.is_cuda()) return run_cuda(s, data.device());
#endif
  cpu::run(s);
}

template <Operation op>
at::Tensor reduce(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  const at::ScalarType result = result_type(op, data.scalar_type(), dtype);
  const int64_t d = check<op>(data, offsets, dim, result);
  const at::Tensor out = empty(with_size(data, d, offsets.sym_size(0) - 1), result, data);
  compute(op, data, offsets, d, out);
  return out;
}

template <Operation op>
at::Tensor reduce_meta(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  const at::ScalarType result = result_type(op, data.scalar_type(), dtype);
  const int64_t d = check<op>(data, offsets, dim, result);
  return empty(with_size(data, d, offsets.sym_size(0) - 1), result, data);
}

// The checks of an out variant, before anything is written.
template <Operation op>
int64_t check_out(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype, const at::Tensor& out) {
  const int64_t d = check<op>(data, offsets, dim, out_type(op, data, dtype, out));
  check_out_place(out, data.device());
  return d;
}

template <Operation op>
at::Tensor& reduce_out(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype, at::Tensor& out) {
  const int64_t d = check_out<op>(data, offsets, dim, dtype, out);
  const Sizes symbolic = with_size(data, d, offsets.sym_size(0) - 1);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  const bool fits = out.sizes() == sizes;
  if (fits) at::assert_no_internal_overlap(out);
  // If writing `out` could change an input, or `out` is a lazy view or has other sizes, computes in a tensor of its own first.
  if (!fits || out.is_alias_of(data) || out.is_alias_of(offsets) || out.is_conj() || out.is_neg()) {
    const at::Tensor own = empty(symbolic, out.scalar_type(), data);
    compute(op, data, offsets, d, own);
    at::native::resize_output(out, sizes);
    out.copy_(own);
  } else {
    compute(op, data, offsets, d, out);
  }
  return out;
}

template <Operation op>
at::Tensor& reduce_out_meta(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype,
                            at::Tensor& out) {
  const int64_t d = check_out<op>(data, offsets, dim, dtype, out);
  at::native::resize_output_symint(out, with_size(data, d, offsets.sym_size(0) - 1));
  return out;
}

// --- the transpose ----------------------------------------------------------------------------------------------------------

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

// From (..., segments, ...) to (..., size, ...): each element gets the value of its segment, or 0 outside of all segments.
at::Tensor spread(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim) {
  const int64_t d = segment_dim("_segment_spread", "input", input.dim(), dim), count = offsets.size(0) - 1;
  check_offsets("_segment_spread", offsets, input.device());
  TORCH_CHECK(input.size(d) == count, "_segment_spread: input: expected ", count, " segments, but got ", input.size(d));
  const int64_t length = size.expect_int();
  if (count == 0) return at::zeros_symint(with_size(input, d, length), input.options());
  const at::Tensor places = at::arange(length, offsets.options());
  const at::Tensor number = at::searchsorted(offsets, places, /*out_int32=*/false, /*right=*/true).sub_(1);
  at::Tensor outside = number.lt(0).logical_or_(number.eq(count));
  // As integers, since index_select and masked_fill_ do not take all dtypes.
  const at::ScalarType bits = bits_of(input.scalar_type());
  at::Tensor result = input.view(bits).index_select(d, number.clamp_(0, count - 1));
  for (int64_t i = d + 1; i < input.dim(); ++i) outside = outside.unsqueeze(-1);
  return result.masked_fill_(outside, 0).view(input.scalar_type());
}

at::Tensor spread_meta(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim) {
  const int64_t d = segment_dim("_segment_spread", "input", input.dim(), dim);
  check_offsets("_segment_spread", offsets, input.device());
  return empty(with_size(input, d, std::move(size)), input.scalar_type(), input);
}

// --- gradients --------------------------------------------------------------------------------------------------------------

// The facts that a backward pass needs.
struct Saved {
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

enum class Direction { sum, mean, spread };

at::Tensor to_dtype(at::Tensor grad, at::ScalarType dtype) { return grad.scalar_type() == dtype ? grad : grad.to(dtype); }

// Divides each segment's value by the segment's length; gives 0 for an empty segment.
at::Tensor over_lengths(const at::Tensor& grad, const at::Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  at::Tensor lengths = offsets.diff();
  for (int64_t i = 0; i < grad.dim(); ++i)
    if (i != dim) lengths = lengths.unsqueeze(i < dim ? 0 : -1);
  return apply(Formula::ratio, grad, {{}, lengths}, grad.is_complex() ? dtype : c10::toRealValueType(dtype));
}

template <Direction direction>
at::Tensor gradient(at::Tensor grad, const at::Tensor& offsets, const Saved& input) {
  if (!grad.defined()) return grad;
  if constexpr (direction == Direction::spread) {
    return segments<Operation::sum>().call(grad, offsets, input.dim, input.dtype);
  } else {
    if (grad.is_complex() && !at::isComplexType(input.dtype)) grad = at::real(grad);
    if constexpr (direction == Direction::mean) grad = over_lengths(grad, offsets, input.dim, input.dtype);
    return spread_segments().call(to_dtype(std::move(grad), input.dtype), offsets, input.size, input.dim);
  }
}

template <Direction direction>
struct Rule : RuleOf<Saved> {
  static constexpr std::array<bool, 1> kKept = {false};  // the offsets

  static std::string name() {
    return direction == Direction::sum    ? "gpureduce_segment_sum_backward"
           : direction == Direction::mean ? "gpureduce_segment_mean_backward"
                                          : "gpureduce_segment_spread_backward";
  }

  static variable_list gradients(variable_list grads, const Saved& input, const std::array<at::Tensor, 1>& kept) {
    return {gradient<direction>(std::move(grads[0]), kept[0], input), at::Tensor()};
  }
};

// Calls `below`, which is linear in `input`, and adds derivatives. `again` makes the same call for a tangent.
template <Direction direction, class Below, class Again>
at::Tensor differentiable(const at::Tensor& input, const at::Tensor& offsets, int64_t dim, Below below, Again again) {
  const bool backward = torch::autograd::compute_requires_grad(input), forward = torch::autograd::isFwGradDefined(input);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    result = below();
  }
  if (!(backward || forward) || !torch::autograd::isDifferentiableType(result.scalar_type())) return result;
  if (backward) {
    const auto node = make_node<Rule<direction>>();
    node->set_next_edges(torch::autograd::collect_next_edges(input, offsets));
    node->facts.dim = at::maybe_wrap_dim(dim, input.dim());
    node->facts.size = input.sym_size(node->facts.dim);
    node->facts.dtype = input.scalar_type();
    node->keep(0, offsets);
    torch::autograd::set_history(result, node);
  }
  if (forward) result._set_fw_grad(again(input._fw_grad(/*level=*/0)), /*level=*/0, /*is_inplace_op=*/false);
  return result;
}

template <Operation op>
at::Tensor reduce_differentiable(c10::DispatchKeySet keys, const at::Tensor& data, const at::Tensor& offsets, int64_t dim,
                                 OptionalDtype dtype) {
  return differentiable<op == Operation::sum ? Direction::sum : Direction::mean>(
      data, offsets, dim,
      [&] { return segments<op>().redispatch(keys & c10::after_autograd_keyset, data, offsets, dim, dtype); },
      [&](const at::Tensor& tangent) { return segments<op>().call(tangent, offsets, dim, dtype); });
}

at::Tensor spread_differentiable(c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size,
                                 int64_t dim) {
  return differentiable<Direction::spread>(
      input, offsets, dim,
      [&] { return spread_segments().redispatch(keys & c10::after_autograd_keyset, input, offsets, size, dim); },
      [&](const at::Tensor& tangent) { return spread_segments().call(tangent, offsets, size, dim); });
}

template <Operation op>
at::Tensor& reduce_out_differentiable(c10::DispatchKeySet keys, const at::Tensor& data, const at::Tensor& offsets, int64_t dim,
                                      OptionalDtype dtype, at::Tensor& out) {
  if (torch::autograd::compute_requires_grad(data, out)) torch::autograd::throw_error_out_requires_grad(kName<op>);
  TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(data) && !torch::autograd::isFwGradDefined(out),
                              "Trying to use forward AD with ", kName<op>,
                              "_out that does not support it because it is an out= function");
  const at::AutoDispatchBelowAutograd below;
  return segments_out<op>().redispatch(keys & c10::after_autograd_keyset, data, offsets, dim, dtype, out);
}

// Counts the write to `out`, so that a backward pass that needs the old values raises an error.
template <Operation op>
at::Tensor& reduce_out_counted(c10::DispatchKeySet keys, const at::Tensor& data, const at::Tensor& offsets, int64_t dim,
                               OptionalDtype dtype, at::Tensor& out) {
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    segments_out<op>().redispatch(keys & c10::after_ADInplaceOrView_keyset, data, offsets, dim, dtype, out);
  }
  torch::autograd::increment_version(out);
  return out;
}

// --- vmap, autocast, functionalization --------------------------------------------------------------------------------------

namespace functorch = at::functorch;

// A batch of calls of `f(input, offsets, dim)`. If the offsets are batched, there is one call per batch element. Otherwise
// there is one call: the batch becomes the last dim if segments lie along the first one, otherwise the first.
template <class F>
at::Tensor batched(const char* name, const at::Tensor& input, const at::Tensor& offsets, int64_t dim, F f) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const auto layer = functorch::maybeCurrentDynamicLayer();
  TORCH_CHECK(layer.has_value(), name, ": an input has escaped from inside a function being vmapped");
  const int64_t level = layer->layerId();
  const auto [value, batch] = functorch::unwrapTensorAtLevel(input, level);
  const auto [ends, ends_batch] = functorch::unwrapTensorAtLevel(offsets, level);
  if (!batch && !ends_batch) return f(value, ends, dim);
  if (ends_batch) {
    std::vector<at::Tensor> each;
    for (int64_t i = 0; i < ends.size(*ends_batch); ++i)
      each.push_back(f(batch ? value.select(*batch, i) : value, ends.select(*ends_batch, i), dim));
    TORCH_CHECK(!each.empty(), name, ": offsets: a batch of none has no result");
    return functorch::makeBatched(at::stack(each), 0, level);
  }
  const int64_t rank = value.dim() - 1, d = segment_dim(name, "data", rank, dim);
  if (d == rank - 1 && (d > 0 || *batch == 0)) return functorch::makeBatched(f(value.movedim(*batch, 0), ends, -1), 0, level);
  return functorch::makeBatched(f(value.movedim(*batch, -1), ends, 0), rank, level);
}

template <Operation op>
at::Tensor reduce_batched(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  return batched(kName<op>, data, offsets, dim, [&](const at::Tensor& value, const at::Tensor& ends, int64_t d) {
    return segments<op>().call(value, ends, d, dtype);
  });
}

at::Tensor spread_batched(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim) {
  return batched("_segment_spread", input, offsets, dim, [&](const at::Tensor& value, const at::Tensor& ends, int64_t d) {
    return spread_segments().call(value, ends, size, d);
  });
}

at::Tensor call_sum(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  return segments<Operation::sum>().call(data, offsets, dim, dtype);
}

// The out variant becomes a call of the plain one, whose result replaces `out`.
template <Operation op>
at::Tensor& reduce_out_functional(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype,
                                  at::Tensor& out) {
  namespace functionalization = at::functionalization::impl;
  const auto plain = [](const at::Tensor& tensor) {
    if (!functionalization::isFunctionalTensor(tensor)) return tensor;
    functionalization::sync(tensor);
    return functionalization::from_functional_tensor(tensor);
  };
  const at::Tensor input = plain(data), ends = plain(offsets);
  const at::AutoDispatchSkipFunctionalize below;
  if (!functionalization::isFunctionalTensor(out)) {
    TORCH_CHECK(!functionalization::isFunctionalTensor(data), kName<op>,
                ": out is written, so it must be functionalized where the data are");
    return segments_out<op>().call(input, ends, dim, dtype, out);
  }
  functionalization::replace_(out, segments<op>().call(input, ends, dim, out_type(op, input, dtype, out)));
  functionalization::commit_update(out);
  functionalization::sync(out);
  return out;
}

// Calls f with each operation as a compile-time constant, and its name.
template <class F>
void for_each(F f) {
  f(std::integral_constant<Operation, Operation::sum>(), std::string(kName<Operation::sum>));
  f(std::integral_constant<Operation, Operation::mean>(), std::string(kName<Operation::mean>));
}

void register_segments(torch::Library& m) {
  for_each([&](auto op, const std::string& name) {
    m.impl(name.c_str(), &reduce<op>);
    m.impl((name + ".out").c_str(), &reduce_out<op>);
  });
  m.impl("_segment_spread", &spread);
}

// Lazily conjugated and negated views reach the kernels as they are, without a copy.
void register_segments_fallthrough(torch::Library& m) {
  for_each([&](auto, const std::string& name) {
    for (const std::string& each : {name, name + ".out"}) m.impl(each.c_str(), torch::CppFunction::makeFallthrough());
  });
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  gpureduce::for_each([&](auto, const std::string& name) {
    const std::string arguments = "(Tensor data, Tensor offsets, int dim=0, *, ScalarType? dtype=None";
    m.def((name + arguments + ") -> Tensor").c_str(), {at::Tag::pt2_compliant_tag});
    m.def((name + ".out" + arguments + ", Tensor(a!) out) -> Tensor(a!)").c_str(), {at::Tag::pt2_compliant_tag});
  });
  m.def("_segment_spread(Tensor input, Tensor offsets, SymInt size, int dim=0) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(gpureduce, CPU, m) { gpureduce::register_segments(m); }
#ifdef GPUREDUCE_WITH_CUDA
TORCH_LIBRARY_IMPL(gpureduce, CUDA, m) { gpureduce::register_segments(m); }
#endif
TORCH_LIBRARY_IMPL(gpureduce, Meta, m) {
  using namespace gpureduce;
  for_each([&](auto op, const std::string& name) {
    m.impl(name.c_str(), &reduce_meta<op>);
    m.impl((name + ".out").c_str(), &reduce_out_meta<op>);
  });
  m.impl("_segment_spread", &spread_meta);
}
TORCH_LIBRARY_IMPL(gpureduce, Conjugate, m) { gpureduce::register_segments_fallthrough(m); }
TORCH_LIBRARY_IMPL(gpureduce, Negative, m) { gpureduce::register_segments_fallthrough(m); }
TORCH_LIBRARY_IMPL(gpureduce, Autograd, m) {
  using namespace gpureduce;
  for_each([&](auto op, const std::string& name) {
    m.impl(name.c_str(), TORCH_FN(reduce_differentiable<op>));
    m.impl((name + ".out").c_str(), TORCH_FN(reduce_out_differentiable<op>));
  });
  m.impl("_segment_spread", TORCH_FN(spread_differentiable));
}
TORCH_LIBRARY_IMPL(gpureduce, ADInplaceOrView, m) {
  using namespace gpureduce;
  for_each([&](auto op, const std::string& name) { m.impl((name + ".out").c_str(), TORCH_FN(reduce_out_counted<op>)); });
}
TORCH_LIBRARY_IMPL(gpureduce, FuncTorchBatched, m) {
  using namespace gpureduce;
  for_each([&](auto op, const std::string& name) { m.impl(name.c_str(), TORCH_FN(reduce_batched<op>)); });
  m.impl("_segment_spread", TORCH_FN(spread_batched));
}
TORCH_LIBRARY_IMPL(gpureduce, Functionalize, m) {
  using namespace gpureduce;
  for_each([&](auto op, const std::string& name) { m.impl((name + ".out").c_str(), &reduce_out_functional<op>); });
}
TORCH_LIBRARY_IMPL(gpureduce, AutocastCUDA, m) {
  using namespace gpureduce;
  using namespace at::autocast;
  m.impl(
      "segment_sum",
      TORCH_FN(
          (WrapFunction<CastPolicy::fp32_set_opt_dtype, at::kCUDA, SegmentFunction, SegmentFunction, &call_sum>::type::call)));
}
