// segment_sum and segment_mean: sums of runs of unequal lengths, packed along one dim, each with the bits of a sum of its own.
// And _segment_spread, the transpose, which gradients call: each element gets the value of its segment.
#include "../problem/segment.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/WrapDimUtils.h>

#include <limits>

#include "batch.h"
#include "gradient.h"
#include "segments.h"

namespace gpureduce {

namespace {

template <Operation op>
constexpr const char* kName = op == Operation::sum ? "segment_sum" : "segment_mean";
constexpr const char* kSpread = "_segment_spread";

// --- checks -----------------------------------------------------------------------------------------------------------------

// The dim of the segments, which must be the first or the last one.
int64_t segment_dim(const char* name, const char* argument, int64_t rank, int64_t dim) {
  TORCH_CHECK(rank > 0, name, ": ", argument, ": expected a tensor of at least one dim, but got one of none");
  const int64_t d = at::maybe_wrap_dim(dim, rank);
  TORCH_CHECK(d == 0 || d == rank - 1, name, ": dim: expected the first or the last of ", rank, " dims, but got ", dim);
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

Segments segments_of(const at::Tensor& data, const at::Tensor& ends, int64_t dim) {
  Segments s;
  s.offsets = ends.const_data_ptr();
  s.wide = ends.scalar_type() == at::kLong;
  s.count = ends.size(0) - 1;
  s.length = data.size(dim);
  return s;
}

// A call after its checks: the wrapped dim of the segments.
template <class Int>
struct Call {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  int64_t dim;
};

template <Operation op>
struct SegmentReduction {
  static const char* name() { return kName<op>; }
  static constexpr const char* kArguments = "(Tensor data, Tensor offsets, int dim=0, *, ScalarType? dtype=None";
  static constexpr bool kOutHasDtype = true, kHasGradient = true;
  static constexpr bool autocasts(c10::DeviceType device) { return op == Operation::sum && device == at::kCUDA; }
  using Function = at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, OptionalDtype);

  template <class Int>
  static Call<Int> check(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype,
                         const at::Tensor* out) {
    Call<Int> call;
    call.dtype = out ? out_type(op, data, dtype, *out) : result_type(op, data.scalar_type(), dtype);
    call.dim = segment_dim(kName<op>, "data", data.dim(), dim);
    check_offsets(kName<op>, offsets, data.device());
    dtype_of(data.scalar_type(), "an input of dtype", kName<op>);
    dtype_of(call.dtype, "a result of dtype", kName<op>);
    if (out) check_out_place(*out, data.device());
    call.sizes = with_size<Int>(data, call.dim, sizes_of<Int>(offsets)[0] - 1);
    return call;
  }

  static void refuse(const Call<int64_t>& call, const at::Tensor& data, const at::Tensor& offsets, int64_t, OptionalDtype) {
    const at::Tensor ends = values_of(offsets);
    if (data.is_cpu()) check_values(segments_of(data, ends, call.dim), name());
    if (data.numel() > 0) reduction_of(call, data, {});
  }

  static void compute(const Call<int64_t>& call, const at::Tensor& data, const at::Tensor& offsets, int64_t, OptionalDtype,
                      const at::Tensor& out, const Tuning&) {
    if (at::isComplexType(data.scalar_type()) && !at::isComplexType(call.dtype) && call.dtype != at::kBool) {
      TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
    }
    const at::Tensor ends = values_of(offsets);
    Segments s = segments_of(data, ends, call.dim);
    if (data.is_cpu() && check_values(s, name()))
      TORCH_WARN(name(), "(): offsets: they do not begin with 0, and their sum is ", s.length, ", the size of dim",
                 kNotLengths);
    if (data.numel() == 0) {
#ifdef GPUREDUCE_WITH_CUDA
      if (data.is_cuda() && s.length == 0) at::_assert_async(ends.eq(0).all(), "offsets: each must be in [0, the size of dim]");
#endif
      return fill(op, out);
    }
    s.reduction = reduction_of(call, data, out);
    s.stride = data.stride(call.dim) * (static_cast<int64_t>(data.itemsize()) / info(s.reduction.in).size);
    s.result_pitch = out.stride(call.dim);
    if (s.count == 0) return;
#ifdef GPUREDUCE_WITH_CUDA
    if (data.is_cuda()) return run_cuda(s, data.device());
#endif
    cpu::run(s);
  }

 private:
  static Reduction reduction_of(const Call<int64_t>& call, const at::Tensor& data, const at::Tensor& out) {
    DimMask reduce(data.dim(), false);
    reduce[call.dim] = true;
    return make_reduction(op, data, reduce, call.dtype, out, /*keepdim=*/true);
  }
};

template <Operation op>
const auto& segments() {
  return Plumbing<SegmentReduction<op>>::functional();
}

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

// From (..., segments, ...) to (..., size, ...): each element gets the value of its segment, or 0 outside of all segments.
at::Tensor spread(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim) {
  const int64_t d = segment_dim(kSpread, "input", input.dim(), dim), count = offsets.size(0) - 1;
  check_offsets(kSpread, offsets, input.device());
  TORCH_CHECK(input.size(d) == count, kSpread, ": input: expected ", count, " segments, but got ", input.size(d));
  const int64_t length = size.expect_int();
  if (count == 0) return at::zeros(with_size(input, d, length), input.options());
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
  const int64_t d = segment_dim(kSpread, "input", input.dim(), dim);
  check_offsets(kSpread, offsets, input.device());
  return at::empty_symint(with_size(input, d, std::move(size)), input.options());
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
  return with_derivatives<Rule<direction>>(
      std::tie(input, offsets), below,
      [&] {
        const int64_t d = at::maybe_wrap_dim(dim, input.dim());
        return Saved{input.sym_size(d), d, input.scalar_type()};
      },
      [&](const at::Tensor&) { return std::array{offsets}; },
      [&](const at::Tensor&) { return again(input._fw_grad(/*level=*/0)); });
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

// --- vmap -------------------------------------------------------------------------------------------------------------------

namespace functorch = at::functorch;

// A batch of calls of `f(input, offsets, dim)`. If the offsets are batched, there is one call per batch element. Otherwise
// there is one call: the batch becomes the last dim if segments lie along the first one, otherwise the first.
template <class F>
at::Tensor batched(const char* name, const at::Tensor& input, const at::Tensor& offsets, int64_t dim, F f) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(name);
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
  return batched(kSpread, input, offsets, dim, [&](const at::Tensor& value, const at::Tensor& ends, int64_t d) {
    return spread_segments().call(value, ends, size, d);
  });
}

template <Operation op>
void define_segments(torch::Library& m) {
  define_reduction_with_out<SegmentReduction<op>>(m);
  put(m, Key::Autograd, kName<op>, TORCH_FN(reduce_differentiable<op>));
  put(m, Key::FuncTorchBatched, kName<op>, TORCH_FN(reduce_batched<op>));
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define_segments<Operation::sum>(m);
  define_segments<Operation::mean>(m);
  define_operator<spread, spread_meta, spread_differentiable, spread_batched>(
      m, "_segment_spread(Tensor input, Tensor offsets, SymInt size, int dim=0) -> Tensor");
}
