// Sums, means, maxima and minima of gathered rows: what index_sum, embedding_bag and their gradients call.
//
// A list of edges, each from a row of the data to an output, is given twice. Forward it is sorted by outputs: entry i of an
// output reads row rows[i], and is edge edges[i]. Back it is sorted by the data's rows: entry j of a row reads output
// back_rows[j], and is edge back_edges[j]. Without offsets each output (or row) has one entry, its own; without edges an
// entry's number is its edge's. An edge's weight multiplies the row: one number, or numbers that broadcast to it. The gradient
// of the data is the same operator with both lists swapped, so that derivatives of all orders add the same elements in the same
// order. Without the list back, sorts make it: entries of a row then come in the order of their edges.
//
// For example index_sum of rows a, b, c with index 1, 0, 1: forward rows 1, 0, 2, offsets 0, 1, 3 and edges 1, 0, 2 give the
// outputs b, a + c; back rows 1, 0, 1 give the rows' gradients.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>

#include "../core/numeric/weighted.h"
#include "../core/torch/applied.h"
#include "../core/torch/batch.h"
#include "../core/torch/gradient.h"
#include "../core/torch/plumbing.h"
#include "../segments/torch.h"
#include "../segments/torch_numbered.h"
#include "torch_gathered.h"

namespace gpureduce::gathered {

namespace {

using at::Tensor;

constexpr const char* kArguments =
    "(Tensor data, Tensor rows, Tensor? offsets=None, Tensor? weight=None, Tensor? edges=None, Tensor? back_rows=None, Tensor? "
    "back_offsets=None, Tensor? back_edges=None, int dim=0, *, ScalarType? dtype=None";

// --- checks -----------------------------------------------------------------------------------------------------------------

// Entries outside of all outputs are not read, and may have any number.
void check_numbers(const char* name, const Segments& s, const OptionalTensor& edges) {
  for (int64_t i = s.offset(0); i < s.offset(s.count); ++i) {
    const int64_t number = s.gather.number(i);
    if (number >= 0 && number < s.gather.rows) continue;
    TORCH_CHECK_INDEX(!edges, name, "(): rows: expected each in [0, ", s.gather.rows, "), but entry ",
                      edges->select(0, i).item<int64_t>(), " is ", number);
    TORCH_CHECK_INDEX(false, name, "(): index out of range: entry ", i, " is ", number, ", and there are ", s.gather.rows,
                      " rows");
  }
}

// A weight has a number per entry; or it has as many dims as the data, and is broadcast to the data in all dims but `dim`.
void check_weight(const char* name, const Tensor& weight, const Tensor& data, int64_t dim) {
  if (weight.dim() != data.dim()) check_vector(name, ": weight", weight);
  TORCH_CHECK(weight.layout() == at::kStrided, name, ": weight: expected a strided tensor, but got ", weight.layout());
  for (int64_t d = 0; d < weight.dim() && weight.dim() > 1; ++d)
    TORCH_CHECK(d == dim || TORCH_GUARD_OR_TRUE(weight.sym_size(d).sym_eq(1)) ||
                    TORCH_GUARD_OR_TRUE(weight.sym_size(d).sym_eq(data.sym_size(d))),
                name, ": weight: expected 1 or ", data.sym_size(d), " elements in dim ", d, ", but got ", weight.sym_size(d));
}

// The dtype of the result: `dtype`, or otherwise as for a sum of elements of the promoted dtype.
at::ScalarType result_of(const char* name, Operation op, const Tensor& data, const OptionalTensor& weight,
                         OptionalDtype dtype) {
  if (!weight) return gpureduce::result_type(op, data.scalar_type(), dtype);
  TORCH_CHECK_NOT_IMPLEMENTED(!data.is_complex() && !weight->is_complex(), name,
                              ": complex numbers are not supported with weights");
  const at::ScalarType promoted = dtype ? *dtype : at::promoteTypes(data.scalar_type(), weight->scalar_type());
  return gpureduce::result_type(op, promoted, dtype);
}

template <class Int>
struct Call {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  int64_t dim;
};

// --- kernels ----------------------------------------------------------------------------------------------------------------

at::ScalarType type_of(Accumulator product) {
  return product == Accumulator::f32 ? at::kFloat : product == Accumulator::f64 ? at::kDouble : at::kLong;
}

// A weight per entry, or per row of the data where rows are edges, in the type that products have.
Tensor weights_of(const Tensor& weight, const OptionalTensor& edges, bool by_row, Accumulator product) {
  const Tensor typed = weight.resolve_neg().to(type_of(product));
  return (edges && !by_row ? typed.index_select(0, *edges) : typed).contiguous();
}

template <Operation op>
struct GatherReduction {
  static const char* name() { return kName<op>; }
  static constexpr const char* kArguments = gathered::kArguments;
  static constexpr bool out_has_dtype() { return info(op).has_dtype(); }
  static constexpr bool has_gradient() { return true; }
  static constexpr bool autocasts(c10::DeviceType) { return false; }
  using Function = gathered::Function;

  template <class Int>
  static Call<Int> check(const Tensor& data, const Tensor& rows, const OptionalTensor& offsets, const OptionalTensor& weight,
                         const OptionalTensor& edges, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                         int64_t dim, OptionalDtype dtype, const Tensor* out) {
    Call<Int> call;
    TORCH_CHECK(!weight || op == Operation::sum, name(), ": weight: only sums have weights");
    const OptionalDtype wanted = dtype || !out || !out_has_dtype() ? dtype : OptionalDtype(out->scalar_type());
    call.dtype = result_of(name(), op, data, weight, wanted);
    if (out) check_out_dtype(*out, call.dtype);
    TORCH_CHECK(data.dim() > 0, name(), ": expected a tensor of at least one dim, but got one of none");
    call.dim = at::maybe_wrap_dim(dim, data.dim());
    check_integers(name(), ": rows", rows);
    check_device(name(), ": rows", rows, data.device(), "the data");
    if (offsets) check_offsets(name(), *offsets, data.device());
    if (edges) {
      check_integers(name(), ": edges", *edges);
      check_device(name(), ": edges", *edges, data.device(), "the data");
    }
    const bool complex = takes_complex(op) && !weight;
    dtype_of(data.scalar_type(), "an input of dtype", name(), complex);
    dtype_of(call.dtype, "a result of dtype", name(), complex);
    if (weight) {
      check_weight(name(), *weight, data, call.dim);
      check_device(name(), ": weight", *weight, data.device(), "the data");
      dtype_of(weight->scalar_type(), "a weight of dtype", name());
      const Accumulator product = product_type(data, *weight, call.dtype);
      TORCH_CHECK(weighted::accumulator_of(product, gpureduce::dtype_of(call.dtype, "")) == product && call.dtype != at::kBool,
                  name(), ": dtype: a result of ", call.dtype, " cannot be summed from products of ", data.scalar_type(),
                  " and ", weight->scalar_type());
    }
    if (out) check_out_place(*out, data.device());
    call.sizes = with_size<Int>(data, call.dim, offsets ? sizes_of<Int>(*offsets)[0] - 1 : sizes_of<Int>(rows)[0]);
    return call;
  }

  static void refuse(const Call<int64_t>& call, const Tensor& data, const Tensor& rows, const OptionalTensor& offsets,
                     const OptionalTensor& weight, const OptionalTensor& edges, const OptionalTensor&, const OptionalTensor&,
                     const OptionalTensor&, int64_t, OptionalDtype) {
    segments(call, data, {}, plain(rows), ends_of(offsets), edges);
  }

  static void compute(const Call<int64_t>& call, const Tensor& data, const Tensor& given_rows, const OptionalTensor& offsets,
                      const OptionalTensor& weight, const OptionalTensor& edges, const OptionalTensor&, const OptionalTensor&,
                      const OptionalTensor&, int64_t, OptionalDtype, const Tensor& out, const Tuning&) {
    warn_if_imaginary_is_lost(data.scalar_type(), call.dtype);
    const Tensor rows = plain(given_rows), ends = ends_of(offsets);
    Tensor weights;
    Segments s = segments(call, data, out, rows, ends, edges);
    if (weight) {
      s.gather.by_row = edges && s.length > 0 && edges->const_data_ptr() == given_rows.const_data_ptr();
      const int64_t needed = s.gather.by_row ? s.gather.rows : s.length;
      const int64_t given = edges && !s.gather.by_row ? edges->numel() : weight->size(weight->dim() > 1 ? call.dim : 0);
      TORCH_CHECK(given == needed, name(), ": weight: expected ", needed, " elements, but got ", given);
      if (weight->dim() > 1) {
        if (out.numel() == 0) return;
        return compute_parts(call, data, given_rows, offsets, ends, *weight, edges, s.gather.by_row, out);
      }
      const Accumulator product = product_type(data, *weight, call.dtype);
      weights = weights_of(*weight, edges, s.gather.by_row, product);
      s.gather.weights = weights.const_data_ptr();
      s.reduction.accumulator = product;
      s.reduction.map = Map::value;
    }
    if (out.numel() == 0) return;
    if (s.length == 0 || s.gather.rows == 0) {  // each output is empty, as one beside a single element
      out.copy_(reduce_segments(op, at::zeros({1}, data.options()), at::zeros({2}, at::device(data.device()).dtype(at::kInt)),
                                0, call.dtype));
      return;
    }
    if (!offsets && !weight && call.dtype == data.scalar_type() && copy_numbered(data, call.dim, rows, out)) return;
    Tensor values;
    if (offsets && edges && s.length <= 2 * s.gather.rows) values = side_by_side(s, data, rows, weight, call);
    if (values.defined()) {
      s.reduction = reduction_of(call, values, out);
      s.stride = values.stride(call.dim) * (static_cast<int64_t>(values.itemsize()) / info(s.reduction.in).size);
      s.gather = {};
    }
    run_segments(s, data.device());
  }

 private:
  // Weights of several dims. The elements of a row that share a weight are a call. If each has its own, products come first.
  static void compute_parts(const Call<int64_t>& call, const Tensor& data, const Tensor& rows, const OptionalTensor& offsets,
                            const Tensor& ends, const Tensor& weight, const OptionalTensor& edges, bool by_row,
                            const Tensor& out) {
    const auto run = [&](const Tensor& of_data, const OptionalTensor& of_weight, const Tensor& to) {
      Call<int64_t> part = call;
      part.sizes = with_size<int64_t>(of_data, call.dim, to.size(call.dim));
      compute(part, of_data, rows, offsets, of_weight, edges, {}, {}, {}, call.dim, call.dtype, to, {});
    };
    if (rows.numel() == 0 || data.numel() == 0) return run(data, {}, out);
    int64_t apart = -1;
    bool own = true;
    for (int64_t d = 0; d < data.dim(); ++d) {
      if (d == call.dim) continue;
      own &= weight.size(d) == data.size(d);
      if (weight.size(d) > 1) apart = d;
    }
    if (apart < 0) {
      Tensor vector = weight;
      for (int64_t d = data.dim(); d-- > 0;)
        if (d != call.dim) vector = vector.select(d, 0);
      return run(data, vector, out);
    }
    if (!own) {
      for (int64_t i = 0; i < weight.size(apart); ++i)
        run(data.narrow(apart, i, 1), weight.narrow(apart, i, 1), out.narrow(apart, i, 1));
      return;
    }
    const at::ScalarType type = type_of(product_type(data, weight, call.dtype));
    const auto products = [&](const Tensor& x, const Tensor& w) {
      const Tensor factor = w.resolve_neg().to(type);
      return at::isFloatingType(type) ? multiplied(x, factor) : x * factor;
    };
    if (by_row) return run(products(data.resolve_neg().to(type), weight), {}, out);
    const Tensor sent = along(data, {}, {rows, {}, {}}, {}, call.dim, type);
    const Tensor values = products(sent, edges ? weight.index_select(call.dim, *edges) : weight);
    if (offsets) run_segments(make_segments(op, values, ends, call.dim, out), data.device());
    else out.copy_(values);
  }

  // Entries of narrow rows, copied so that they lie side by side, as the kernel of rows needs them. Products are made while
  // they are copied. Undefined if rows are wide, or no kernel takes them. All entries are read: a sort made this list, and each
  // has an output, or a row that exists.
  static Tensor side_by_side(const Segments& s, const Tensor& data, const Tensor& rows, const OptionalTensor& weight,
                             const Call<int64_t>& call) {
    constexpr int64_t kNarrowBytes = 8;
    const auto is_small = [](at::ScalarType t) { return t == at::kFloat || t == at::kHalf || t == at::kBFloat16; };
    if (data.numel() / s.gather.rows * static_cast<int64_t>(data.itemsize()) > kNarrowBytes) return {};
    const auto sizes = with_size<int64_t>(data, call.dim, s.length);
    if (!weight) {
      const Tensor values = at::empty(sizes, data.options());
      return copy_numbered(data, call.dim, rows, values) ? values : Tensor();
    }
    if (!s.gather.by_row || data.numel() != s.gather.rows || !is_small(data.scalar_type()) || !is_small(call.dtype) ||
        !is_small(weight->scalar_type()))
      return {};
    static const auto ordered = find<Tensor(const Tensor&, const Tensor&, const OptionalTensor&)>("_gather_values");
    return ordered.call(data.reshape(-1), rows, weight).view(sizes);
  }

  // The offsets as kernels read them: on the CPU a copy, as the caller's may change after they were checked.
  static Tensor ends_of(const OptionalTensor& offsets) {
    if (!offsets) return {};
    return offsets->is_cpu() ? own_copy(*offsets) : plain(*offsets);
  }

  static Reduction reduction_of(const Call<int64_t>& call, const Tensor& data, const Tensor& out) {
    DimMask reduce(data.dim(), false);
    reduce[call.dim] = true;
    return make_reduction(op, data, reduce, call.dtype, out, /*keepdim=*/true);
  }

  static Accumulator product_type(const Tensor& data, const Tensor& weight, at::ScalarType result) {
    return weighted::product_of(gpureduce::dtype_of(data.scalar_type(), ""), gpureduce::dtype_of(weight.scalar_type(), ""),
                                gpureduce::dtype_of(result, ""));
  }

  static Segments segments(const Call<int64_t>& call, const Tensor& data, const Tensor& out, const Tensor& rows,
                           const Tensor& ends, const OptionalTensor& edges) {
    Segments s{};
    s.length = rows.size(0);
    s.count = ends.defined() ? ends.size(0) - 1 : s.length;
    s.offsets = ends.defined() ? ends.const_data_ptr() : nullptr;
    s.wide = ends.defined() && ends.scalar_type() == at::kLong;
    s.gather = {rows.const_data_ptr(), rows.scalar_type() == at::kLong, data.size(call.dim)};
    if (data.is_cpu()) {
      if (s.offsets) check_values(s, name());
      check_numbers(name(), s, edges);
    } else if (s.length > 0 && s.gather.rows == 0) {  // no kernel runs, which would check
      TORCH_CHECK_INDEX(s.offsets, name(), "(): index out of range: there are no rows");
      at::_assert_async(ends.select(0, 0).eq(ends.select(0, -1)), "an index is not in [0, the number of rows)");
    }
    if (s.length == 0 || data.numel() == 0) return s;
    s.reduction = reduction_of(call, data, out);
    s.stride = data.stride(call.dim) * (static_cast<int64_t>(data.itemsize()) / info(s.reduction.in).size);
    s.result_pitch = out.defined() ? out.stride(call.dim) : 0;
    return s;
  }
};

// --- derivatives ------------------------------------------------------------------------------------------------------------

// The number of each entry's output; and whether the entry lies outside of all of them.
struct Numbers { Tensor number, outside; };
Numbers numbers_of(const Tensor& offsets, const c10::SymInt& entries) {
  const Tensor places = at::arange(entries, offsets.options());
  const Tensor number = at::searchsorted(offsets, places, /*out_int32=*/offsets.scalar_type() == at::kInt, /*right=*/true) - 1;
  const c10::SymInt count = offsets.sym_size(0) - 1;
  return {number, number.lt(0).logical_or(number.ge(count))};
}

// The row and the output of each edge, in the order of the edges. An output is undefined where it has the edge's number.
// outside: which entries have no output, and then any row. It stays undefined for a list with edges: all its entries have
// outputs, or dots() reads the other list.
struct Ends { Tensor rows, outputs, outside; };
Ends ends_of(const Edges& list) {
  const c10::SymInt entries = list.rows.sym_size(0);
  Ends ends{list.rows, {}, {}};
  if (list.offsets.defined()) {
    const Numbers found = numbers_of(list.offsets, entries);
    ends.outputs = found.number;
    if (!list.edges.defined()) {
      ends.outputs = found.number.masked_fill(found.outside, 0);
      ends.rows = list.rows.masked_fill(found.outside, 0);
      ends.outside = found.outside;
    }
  }
  if (!list.edges.defined()) return ends;
  const Tensor entry = std::get<0>(index_plan_operator().call(list.edges, entries));  // of each edge
  ends.rows = ends.rows.index_select(0, entry);
  ends.outputs = ends.outputs.defined() ? ends.outputs.index_select(0, entry) : entry;
  return ends;
}

// The list of edges, sorted by the data's rows. The data has `size` rows.
Edges sorted_by_rows(const Edges& forward, const c10::SymInt& size) {
  const Ends ends = ends_of(forward);
  const auto plan = [&](const Tensor& rows, const c10::SymInt& count) { return index_plan_operator().call(rows, count); };
  if (!ends.outside.defined()) {
    const auto [order, offsets] = plan(ends.rows, size);
    return {ends.outputs.defined() ? ends.outputs.index_select(0, order) : order, offsets, order};
  }
  // Entries outside of all outputs get a row of their own, the last one, which nobody reads.
  const auto [order, offsets] = plan(at::where(ends.outside, size, ends.rows), size + 1);
  return {ends.outputs.index_select(0, order), offsets.slice_symint(0, 0, size + 1), order};
}

// The edges with a row of their own each, in their order: what they read of the data, and both lists from there to the outputs.
struct Apart { Edges read, forward, back; };
Apart apart(const Edges& list) {
  const Ends ends = ends_of(list);
  const Tensor all = at::arange(list.rows.sym_size(0), list.rows.options());
  const Tensor order = list.edges.defined() ? list.edges : all;
  return {{ends.rows, {}, {}}, {order, list.offsets, order}, {ends.outputs.defined() ? ends.outputs : all, {}, {}}};
}

// The dims along which a row's elements share a weight.
Dims shared_dims(const Tensor& data, const Tensor& weight, int64_t dim) {
  Dims shared;
  for (int64_t d = 0; d < data.dim(); ++d)
    if (d != dim && (weight.dim() == 1 || TORCH_GUARD_OR_FALSE(weight.sym_size(d).sym_eq(1)))) shared.push_back(d);
  return shared;
}

// The dot products of the rows that each edge joins, over the dims `shared`, in the order of the edges. `keeps`: these dims.
Tensor dots(const Tensor& data, const Tensor& grad, const Edges& forward, const Edges& back, int64_t dim,
            at::IntArrayRef shared, bool keeps, at::ScalarType dtype) {
  // Where there are no rows, all entries are outside: they read a row of zeros.
  const auto rows = [&](const Tensor& x, const Tensor& numbers) {
    const bool none = TORCH_GUARD_OR_FALSE(x.sym_size(dim).sym_eq(0));
    const Tensor read = none ? at::zeros_symint(with_size<c10::SymInt>(x, dim, 1), x.options()) : x;
    return along(read, {}, {numbers, {}, {}}, {}, dim, x.scalar_type());
  };
  const bool from_back = forward.edges.defined() && back.rows.defined() && !back.edges.defined();
  const Tensor &far = from_back ? grad : data, &near = from_back ? data : grad;
  const Ends ends = ends_of(from_back ? back : forward);
  const Tensor there = rows(far, ends.rows), here = ends.outputs.defined() ? rows(near, ends.outputs) : near;
  const bool keepdim = keeps || shared.empty();
  Tensor result = shared.empty()
                      ? weighted_sum_operator().call(there.unsqueeze(-1), here.unsqueeze(-1), at::IntArrayRef(-1), false, dtype)
                      : weighted_sum_operator().call(there, here, shared, keepdim, dtype);
  if (!ends.outside.defined()) return result;
  return result.masked_fill(gpureduce::along(ends.outside, keepdim ? dim : 0, result.dim()), 0);
}

// The facts that a backward pass needs.
struct GatherFacts {
  c10::SymInt size;  // of the data's dim
  int64_t dim = 0;
  Dims shared;  // of a weight
  at::ScalarType dtype = at::kFloat, weight_dtype = at::kFloat;
  bool needs_data = false, needs_weight = false;
  bool weight_keeps = false;  // the shared dims

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.size);
    f(self.dim);
    f(self.shared);
    f(self.weight_keeps);
    f(self.dtype);
    f(self.weight_dtype);
    f(self.needs_data);
    f(self.needs_weight);
  }
};

// The saved tensors: the data and the weight where a pass needs them, the lists of edges, and the result of extrema.
using Kept = std::array<Tensor, 9>;
Edges forward_of(const Kept& kept) { return {kept[2], kept[3], kept[4]}; }
Edges back_of(const Kept& kept) { return {kept[5], kept[6], kept[7]}; }

bool is_shared(const Edges& back) { return !back.rows.defined() || back.offsets.defined(); }

// What each element of extrema counts for: it shares its output's `grad` equally with those that equal it. Rows have one edge.
template <Operation op>
Tensor shares(const Tensor& data, const Tensor& grad, const Tensor& result, const Edges& forward, const Edges& back,
              int64_t dim, at::ScalarType dtype) {
  const auto spread = [&](const Tensor& x) { return along(x, {}, back, forward, dim, x.scalar_type()); };
  const Tensor largest = spread(result.detach()), equal = without_float8(compared(data)).eq(without_float8(largest));
  const Tensor ties = spread(along(equal, {}, forward, back, dim, at::kLong));
  return apply(Formula::equal, data, {spread(grad), largest, ties}, dtype);
}

template <Operation op>
struct GatherRule : RuleOf<GatherFacts> {
  static constexpr std::array<bool, 9> kKept = {false, false, false, false, false, false, false, false, true};

  static std::string name() { return std::string("gpureduce") + kName<op> + "_backward"; }

  static GatherFacts asked(GatherFacts saved, torch::autograd::Node& node) {
    saved.needs_data = saved.needs_data && node.task_should_compute_output(0);
    saved.needs_weight = saved.needs_weight && node.task_should_compute_output(1);
    return saved;
  }

  static variable_list gradients(variable_list grads, const GatherFacts& saved, const Kept& kept) {
    variable_list result(2);
    Tensor grad = std::move(grads[0]);
    if (!grad.defined()) return result;
    const Edges forward = forward_of(kept), back = back_of(kept);
    if (grad.is_complex() && !at::isComplexType(saved.dtype)) grad = at::real(grad);
    if constexpr (op == Operation::_amax || op == Operation::_amin) {
      const auto shares_of = [&](const Tensor& data, const Edges& to, const Edges& from, at::ScalarType dtype) {
        return shares<op>(data, grad, kept[8], to, from, saved.dim, dtype);
      };
      if (!is_shared(back)) {
        result[0] = shares_of(kept[0], forward, back, saved.dtype);
      } else {
        const Apart own = apart(forward);
        const Edges list = back.rows.defined() ? back : sorted_by_rows(forward, saved.size);
        const Tensor sent = along(kept[0], {}, own.read, list, saved.dim, saved.dtype);
        const Tensor each = shares_of(sent, own.forward, own.back, at::toOpMathType(saved.dtype));
        const Tensor order = list.edges.defined() ? list.edges : at::arange(each.sym_size(saved.dim), list.rows.options());
        result[0] = along(each, {}, {order, list.offsets, order}, own.read, saved.dim, saved.dtype);
      }
    } else {
      if (op == Operation::mean && forward.offsets.defined())
        grad = over_lengths(grad, forward.offsets, saved.dim, at::toOpMathType(saved.dtype));
      if (saved.needs_data)
        result[0] = along(grad, kept[1], back.rows.defined() ? back : sorted_by_rows(forward, saved.size), forward, saved.dim,
                          saved.dtype);
      if (saved.needs_weight)
        result[1] = dots(kept[0], grad, forward, back, saved.dim, saved.shared, saved.weight_keeps, saved.weight_dtype);
    }
    return result;
  }
};

template <Operation op>
Tensor tangent(const Tensor& data, const Tensor& weight, const Tensor& result, const Edges& forward, const Edges& back,
               int64_t dim) {
  const at::ScalarType dtype = result.scalar_type();
  const Tensor change = data._fw_grad(/*level=*/0);
  if constexpr (op == Operation::_amax || op == Operation::_amin) {
    Tensor x = data._fw_primal(/*level=*/0), moved = change;
    Edges to = forward, from = back;
    if (is_shared(back)) {
      const Apart own = apart(forward);
      for (Tensor* each : {&x, &moved}) *each = along(*each, {}, own.read, back, dim, dtype);
      to = own.forward;
      from = own.back;
    }
    const Tensor share = shares<op>(x, at::ones_like(result), result, to, from, dim, dtype);
    return along(share * moved, {}, to, from, dim, dtype);
  } else {
    Tensor sum;
    if (change.defined())
      sum = along<op>(change, weight.defined() ? weight._fw_primal(/*level=*/0) : weight, forward, back, dim, dtype);
    const Tensor of_weight = weight.defined() ? weight._fw_grad(/*level=*/0) : Tensor();
    if (!of_weight.defined()) return sum;
    const Tensor more = along<op>(data._fw_primal(/*level=*/0), of_weight, forward, back, dim, dtype);
    return sum.defined() ? sum + more : more;
  }
}

template <Operation op>
Tensor reduce_differentiable(c10::DispatchKeySet keys, const Tensor& data, const Tensor& rows, const OptionalTensor& offsets,
                             const OptionalTensor& weights, const OptionalTensor& edges, const OptionalTensor& back_rows,
                             const OptionalTensor& back_offsets, const OptionalTensor& back_edges, int64_t dim,
                             OptionalDtype dtype) {
  const Tensor weight = tensor_of(weights);
  const Edges forward{rows, tensor_of(offsets), tensor_of(edges)};
  const Edges back{tensor_of(back_rows), tensor_of(back_offsets), tensor_of(back_edges)};
  const bool extreme = op == Operation::_amax || op == Operation::_amin;
  const bool needs_weight = weight.defined() && weight.requires_grad();
  return with_derivatives<GatherRule<op>>(
      std::tie(data, weight),
      [&] {
        return gather<op>().redispatch(keys & c10::after_autograd_keyset, data, rows, offsets, weights, edges, back_rows,
                                       back_offsets, back_edges, dim, dtype);
      },
      [&] {
        const int64_t d = at::maybe_wrap_dim(dim, data.dim());
        GatherFacts facts{data.sym_size(d), d, {}, data.scalar_type()};
        facts.needs_data = data.requires_grad();
        facts.needs_weight = needs_weight;
        if (!needs_weight) return facts;
        facts.weight_dtype = weight.scalar_type();
        facts.weight_keeps = weight.dim() > 1;
        facts.shared = shared_dims(data, weight, d);
        return facts;
      },
      [&](const Tensor& result) {
        return Kept{extreme || needs_weight ? data : Tensor(),
                    data.requires_grad() ? weight : Tensor(),
                    forward.rows,
                    forward.offsets,
                    forward.edges,
                    back.rows,
                    back.offsets,
                    back.edges,
                    extreme ? result : Tensor()};
      },
      [&](const Tensor& result) {
        return tangent<op>(data, weight, result, forward, back, at::maybe_wrap_dim(dim, data.dim()));
      });
}

// --- vmap -------------------------------------------------------------------------------------------------------------------

// Batched data are one call, whose results have the batch where the data have it. If anything else is batched, there is one
// call per element of the batch.
template <Operation op>
Tensor reduce_batched(const Tensor& data, const Tensor& rows, const OptionalTensor& offsets, const OptionalTensor& weight,
                      const OptionalTensor& edges, const OptionalTensor& back_rows, const OptionalTensor& back_offsets,
                      const OptionalTensor& back_edges, int64_t dim, OptionalDtype dtype) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(kName<op>);
  const Unwrapped<8> batch({data, rows, tensor_of(offsets), tensor_of(weight), tensor_of(edges), tensor_of(back_rows),
                            tensor_of(back_offsets), tensor_of(back_edges)},
                           level);
  const auto call = [&](const std::array<Tensor, 8>& x, int64_t d) {
    return along<op>(x[0], x[3], {x[1], x[2], x[4]}, {x[5], x[6], x[7]}, d, dtype);
  };
  if (!batch.first) return call(batch.inputs, dim);
  if (std::any_of(batch.where.begin() + 1, batch.where.end(), [](const auto& where) { return where.has_value(); }))
    return call_per_element(kName<op>, batch.size(), level, [&](int64_t i) { return call(batch.at(i), dim); });
  const int64_t d = at::maybe_wrap_dim(dim, batch.inputs[0].dim() - 1), place = *batch.where[0];
  auto inputs = batch.inputs;
  if (inputs[3].defined() && inputs[3].dim() > 1) inputs[3] = inputs[3].unsqueeze(place);
  return with_batch(call(inputs, d + (d >= place)), place, level);
}

template <Operation op>
void define(torch::Library& m) {
  define_reduction_with_out<GatherReduction<op>>(m);
  put(m, Key::Autograd, kName<op>, &reduce_differentiable<op>);
  put(m, Key::FuncTorchBatched, kName<op>, &reduce_batched<op>);
}

}  // namespace

}  // namespace gpureduce::gathered

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  gathered::define<Operation::sum>(m);
  gathered::define<Operation::mean>(m);
  gathered::define<Operation::_amax>(m);
  gathered::define<Operation::_amin>(m);
}
