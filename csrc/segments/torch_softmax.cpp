// segment_softmax and its gradient: each segment has the bits of a softmax of its own.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include "../core/torch/applied.h"
#include "../core/torch/gradient.h"
#include "../core/torch/plumbing.h"
#include "../rows/torch.h"
#include "torch.h"
#include "torch_numbered.h"

namespace gpureduce {

namespace {

using at::Tensor;

constexpr const char* kBackward = "_segment_softmax_backward";

struct SegmentSoftmax {
  static const char* name() { return "segment_softmax"; }
  using Function = Tensor(const Tensor&, const Tensor&, int64_t, OptionalDtype);
};
using Forward = Plumbing<SegmentSoftmax>;

using Backward = Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, at::ScalarType);
const auto& backward_operator() {
  static const auto handle = find<Backward>(kBackward);
  return handle;
}

int64_t check(const Tensor& data, const Tensor& offsets, int64_t dim) {
  check_offsets(SegmentSoftmax::name(), offsets, data.device());
  return segment_dim(SegmentSoftmax::name(), "data", data.dim(), dim);
}

// --- kernels ----------------------------------------------------------------------------------------------------------------

Tensor softmax(const Tensor& data, const Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  static const auto finish = find<std::tuple<Tensor, Tensor>(const Tensor&, const std::optional<Tensor>&, std::string_view,
                                                             int64_t, double, at::ScalarType)>("_finish_rows");
  const at::ScalarType type = rows::softmax_type(SegmentSoftmax::name(), data, dtype);
  const int64_t d = check(data, offsets, dim);
  const Tensor ends = checked_ends(SegmentSoftmax::name(), data, offsets, d, /*warns=*/true);
  if (data.numel() == 0) return at::empty_like(data, data.options().dtype(type));
  const bool wide = data.scalar_type() == at::kDouble || type == at::kDouble;
  const at::ScalarType computed = wide ? at::kDouble : at::kFloat;
  const SegmentExponentials found = segment_exponentials(data, ends, d, computed);
  const auto [m, factor] = finish.call(found.sums, found.largest, "softmax", data.size(d), 0, computed);
  if (const Tensor y = apply_numbered(Formula::softmax, data, d, ends, found.largest, factor, type); y.defined()) return y;
  const SegmentPlaces places(ends, data.size(d), d, data.dim());
  const Tensor x = wide ? data.to(computed) : data;  // the formula is computed in its type
  return apply(Formula::softmax, x, {places.select(found.largest), places.select(factor), places.inside()}, type);
}

Tensor softmax_meta(const Tensor& data, const Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  const at::ScalarType type = rows::softmax_type(SegmentSoftmax::name(), data, dtype);
  check(data, offsets, dim);
  return at::empty_like(data, data.options().dtype(type));
}

at::ScalarType computed_in(const Tensor& grad, const Tensor& result, at::ScalarType dtype) {
  const bool wide = dtype == at::kDouble || grad.scalar_type() == at::kDouble || result.scalar_type() == at::kDouble;
  return wide ? at::kDouble : at::kFloat;
}

Tensor backward_meta(const Tensor& grad, const Tensor& result, const Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  check(result, offsets, dim);
  TORCH_CHECK(grad.sym_sizes() == result.sym_sizes(), kBackward, "(): grad: expected the size ", result.sym_sizes(),
              ", but got ", grad.sym_sizes());
  TORCH_CHECK(at::isFloatingType(dtype), kBackward, "(): dtype: expected a floating one, but got ", dtype);
  return at::empty_like(result, result.options().dtype(dtype));
}

Tensor backward(const Tensor& grad, const Tensor& result, const Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  if (result.numel() == 0) return backward_meta(grad, result, offsets, dim, dtype);
  const int64_t d = check(result, offsets, dim);
  const Tensor ends = checked_ends(kBackward, result, offsets, d, /*warns=*/false);
  const at::ScalarType computed = computed_in(grad, result, dtype);
  const Tensor y = computed == at::kDouble ? result.to(computed) : result;  // the formulas are computed in its type
  const Tensor products = apply(Formula::product, y, {grad}, computed);
  const Tensor sums = reduce_segments(Operation::sum, products, ends, d, computed);
  if (const Tensor x = apply_numbered(Formula::softmax_backward, y, d, ends, grad, sums, dtype); x.defined()) return x;
  const SegmentPlaces places(ends, result.size(d), d, result.dim());
  return apply(Formula::softmax_backward, y, {grad, places.select(sums), places.inside()}, dtype);
}

// --- derivatives ------------------------------------------------------------------------------------------------------------

struct SegmentSoftmaxFacts {
  int64_t dim = 0;
  at::ScalarType dtype = at::kFloat;  // of the data

  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.dim);
    f(self.dtype);
  }
};

struct SegmentSoftmaxRule : RuleOf<SegmentSoftmaxFacts> {
  static constexpr std::array<bool, 2> kKept = {true, false};  // the result, and the offsets

  static std::string name() { return "gpureduce_segment_softmax_backward"; }

  static variable_list gradients(variable_list grads, const SegmentSoftmaxFacts& facts, const std::array<Tensor, 2>& kept) {
    if (!grads[0].defined()) return variable_list(2);
    return {backward_operator().call(grads[0], kept[0], kept[1], facts.dim, facts.dtype), Tensor()};
  }
};

Tensor softmax_differentiable(c10::DispatchKeySet keys, const Tensor& data, const Tensor& offsets, int64_t dim,
                              OptionalDtype dtype) {
  return with_derivatives<SegmentSoftmaxRule>(
      std::tie(data, offsets),
      [&] { return Forward::functional().redispatch(keys & c10::after_autograd_keyset, data, offsets, dim, dtype); },
      [&] { return SegmentSoftmaxFacts{dim, data.scalar_type()}; },
      [&](const Tensor& result) { return std::array{result, offsets}; },
      [&](const Tensor& result) {
        return backward_operator().call(data._fw_grad(/*level=*/0), result, offsets, dim, result.scalar_type());
      });
}

// The backward pass by operators that torch can differentiate again, with the same bits.
Tensor backward_composed(const Tensor& grad, const Tensor& result, const Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  const at::ScalarType computed = computed_in(grad, result, dtype);
  const int64_t d = segment_dim(kBackward, "result", result.dim(), dim);
  const c10::SymInt size = result.sym_size(d);
  const Tensor g = grad.to(computed), y = result.to(computed);
  const Tensor sums = call_segment_spread(call_segment_sum(g * y, offsets, d), offsets, size, d);
  return apply(Formula::softmax_backward, y, {g, sums, inside_segments(offsets, size, d, result.dim())}, dtype);
}

Tensor backward_differentiable(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& result, const Tensor& offsets,
                               int64_t dim, at::ScalarType dtype) {
  if (is_tracked(grad, result)) return backward_composed(grad, result, offsets, dim, dtype);
  const at::AutoDispatchBelowADInplaceOrView below;
  return backward_operator().redispatch(keys & c10::after_autograd_keyset, grad, result, offsets, dim, dtype);
}

// --- vmap -------------------------------------------------------------------------------------------------------------------

Tensor softmax_batched(const Tensor& data, const Tensor& offsets, int64_t dim, OptionalDtype dtype) {
  return batched_segments(
      SegmentSoftmax::name(), std::array{data}, offsets, dim,
      [&](const auto& inputs, const Tensor& ends, int64_t d) { return Forward::functional().call(inputs[0], ends, d, dtype); });
}

Tensor backward_batched(const Tensor& grad, const Tensor& result, const Tensor& offsets, int64_t dim, at::ScalarType dtype) {
  return batched_segments(kBackward, std::array{grad, result}, offsets, dim,
                          [&](const auto& inputs, const Tensor& ends, int64_t d) {
                            return backward_operator().call(inputs[0], inputs[1], ends, d, dtype);
                          });
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define_operator<softmax, softmax_meta, softmax_differentiable, softmax_batched>(
      m, "segment_softmax(Tensor data, Tensor offsets, int dim=0, *, ScalarType? dtype=None) -> Tensor");
  define_operator<backward, backward_meta, backward_differentiable, backward_batched>(
      m, "_segment_softmax_backward(Tensor grad, Tensor result, Tensor offsets, int dim, ScalarType dtype) -> Tensor");
  put(m, Key::AutocastCUDA, SegmentSoftmax::name(), kernel_of({}, &Forward::reduce_autocast<at::kCUDA>));
  refuse_layouts(m, SegmentSoftmax::name());
}
