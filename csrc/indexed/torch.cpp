// Sums by index without atomics. A stable sort of the index (torch_index.cpp) finds the entries of each output, and the
// operators of torch_gathered.cpp or segments/torch.cpp reduce them. Derivatives, vmap and tracing are theirs.
#include "torch.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/autocast_mode.h>

#include "../core/torch/applied.h"
#include "../core/torch/batch.h"
#include "../core/torch/gradient.h"
#include "torch_gathered.h"

namespace gpureduce::indexed {

namespace {

using at::Tensor;
using c10::SymInt;
using gathered::along;
using gathered::Edges;
using Pair = std::tuple<Tensor, Tensor>;

Pair plan_of(const Tensor& index, const SymInt& size) { return index_plan_operator().call(index, size); }

// --- sums of single elements ------------------------------------------------------------------------------------------------

// The sums, and the offsets of their entries in the sort.
Pair sums_by_plan(const Tensor& source, const Tensor& index, const SymInt& size, const Tensor& weight, int64_t dim,
                  OptionalDtype dtype) {
  const auto [order, offsets] = plan_of(index, size);
  return {along(source, weight, {order, offsets, order}, {index, {}, {}}, dim, dtype), offsets};
}

// If an entry is one number, the sort can move it along, which saves a gather.
constexpr const char* kSumValues = "_index_sum_values";
GPUREDUCE_HANDLE(sum_values, kSumValues, Pair(const Tensor&, const Tensor&, SymInt, const OptionalTensor&, at::ScalarType))

bool can_sort_values(const Tensor& source, const OptionalTensor& weight, at::ScalarType result) {
  const auto is_small_float = [](at::ScalarType t) { return t == at::kFloat || t == at::kHalf || t == at::kBFloat16; };
  return source.dim() == 1 && is_small_float(source.scalar_type()) && is_small_float(result) &&
         (!weight || is_small_float(weight->scalar_type()));
}

Pair values_summed(const Tensor& source, const Tensor& index, SymInt size, const OptionalTensor& weight, at::ScalarType dtype) {
  static const auto sort = find<Pair(const Tensor&, const Tensor&, SymInt, const OptionalTensor&)>("_index_sort_values");
  static const auto sum = find<Tensor(const Tensor&, const Tensor&, int64_t, OptionalDtype)>("segment_sum");
  const auto [sorted, offsets] = sort.call(source, index, std::move(size), weight);
  return {sum.call(sorted, offsets, 0, dtype), offsets};
}

Pair values_summed_by_plan(const Tensor& source, const Tensor& index, SymInt size, const OptionalTensor& weight,
                           at::ScalarType dtype) {
  return sums_by_plan(source, index, size, tensor_of(weight), 0, dtype);
}

// Where derivatives are asked for, the operators that have them.
Pair values_summed_differentiable(c10::DispatchKeySet keys, const Tensor& source, const Tensor& index, SymInt size,
                                  const OptionalTensor& weight, at::ScalarType dtype) {
  const Tensor factor = tensor_of(weight);
  if (is_tracked(source, factor)) return values_summed_by_plan(source, index, std::move(size), weight, dtype);
  const at::AutoDispatchBelowADInplaceOrView below;
  return sum_values().redispatch(keys & c10::after_autograd_keyset, source, index, std::move(size), weight, dtype);
}

// The sums with the offsets, by the faster way. The index has one dim.
Pair sums(const Tensor& source, const Tensor& index, const SymInt& size, const OptionalTensor& weight, int64_t dim,
          OptionalDtype dtype) {
  const at::ScalarType natural = weight ? at::promoteTypes(source.scalar_type(), weight->scalar_type()) : source.scalar_type();
  if (can_sort_values(source, weight, dtype.value_or(natural)))
    return sum_values().call(source, index, size, weight, dtype.value_or(natural));
  return sums_by_plan(source, index, size, tensor_of(weight), dim, dtype);
}

// --- index_sum, index_mean, index_amax, index_amin --------------------------------------------------------------------------

template <Operation op>
constexpr const char* kPublic = op == Operation::sum     ? "index_sum"
                                : op == Operation::mean  ? "index_mean"
                                : op == Operation::_amax ? "index_amax"
                                                         : "index_amin";

// Raises an error unless there is a weight for each of `entries`. The operators check its other dims.
void check_weight(const char* name, const OptionalTensor& weight, const Tensor& rows, int64_t dim, const SymInt& entries) {
  if (!weight) return;
  if (weight->dim() != rows.dim()) check_vector(name, "(): weight", *weight);
  const SymInt given = weight->sym_size(weight->dim() > 1 ? dim : 0);
  TORCH_SYM_CHECK(given.sym_eq(entries), name, "(): weight: expected ", entries, " elements, one for each entry, but got ",
                  given);
}

// Raises errors of arguments that do not fit, and returns the dim.
template <Operation op>
int64_t check_reduce(const Tensor& source, const Tensor& index, const OptionalTensor& weight, int64_t dim) {
  const char* const name = kPublic<op>;
  TORCH_CHECK(source.dim() > 0, name, "(): source: expected a tensor of at least one dim, but got one of none");
  const int64_t d = at::maybe_wrap_dim(dim, source.dim());
  check_integers(name, "(): index", index);
  check_device(name, "(): index", index, source.device(), "the source");
  TORCH_SYM_CHECK(index.sym_size(0).sym_eq(source.sym_size(d)), name, "(): index: expected ", source.sym_size(d),
                  " entries, the size of source's dim, but got ", index.sym_size(0));
  check_weight(name, weight, source, d, source.sym_size(d));
  return d;
}

Tensor index_sum(const Tensor& source, const Tensor& index, SymInt size, int64_t dim, const OptionalTensor& weight,
                 OptionalDtype dtype) {
  const int64_t d = check_reduce<Operation::sum>(source, index, weight, dim);
  return std::get<0>(sums(source, index, size, weight, d, dtype));
}

template <Operation op>
Tensor reduce_by_index(const Tensor& source, const Tensor& index, SymInt size, int64_t dim, OptionalDtype dtype) {
  const int64_t d = check_reduce<op>(source, index, {}, dim);
  const auto [order, offsets] = plan_of(index, size);
  return along<op>(source, {}, {order, offsets, order}, {index, {}, {}}, d, dtype);
}

template <Operation op>
Tensor& along_into(const Tensor& data, const OptionalTensor& weight, const Edges& forward, const Edges& back, int64_t dim,
                   OptionalDtype dtype, Tensor& out) {
  static const auto gather_out =
      find<Tensor&(const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                   const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, int64_t, OptionalDtype, Tensor&)>(
          gathered::kName<op>, "out");
  return gather_out.call(data, forward.rows, optional(forward.offsets), weight, optional(forward.edges), optional(back.rows),
                         optional(back.offsets), optional(back.edges), dim, dtype, out);
}

template <Operation op>
Tensor& reduce_by_index_into(const Tensor& source, const Tensor& index, SymInt size, int64_t dim, const OptionalTensor& weight,
                             OptionalDtype dtype, Tensor& out) {
  const int64_t d = check_reduce<op>(source, index, weight, dim);
  const auto [order, offsets] = plan_of(index, size);
  return along_into<op>(source, weight, {order, offsets, order}, {index, {}, {}}, d, dtype, out);
}

template <Operation op>
Tensor& reduce_by_index_out(const Tensor& source, const Tensor& index, SymInt size, int64_t dim, OptionalDtype dtype,
                            Tensor& out) {
  return reduce_by_index_into<op>(source, index, std::move(size), dim, {}, dtype, out);
}

// --- gather_sum, gather_mean, gather_amax, gather_amin ----------------------------------------------------------------------

// Raises errors of arguments that do not fit, and returns the dim.
template <Operation op>
int64_t check_messages(const Tensor& x, const Tensor& source, const Tensor& target, const OptionalTensor& weight, int64_t dim) {
  const char* const name = gathered::kName<op> + 1;
  TORCH_CHECK(x.dim() > 0, name, "(): x: expected a tensor of at least one dim, but got one of none");
  const int64_t d = at::maybe_wrap_dim(dim, x.dim());
  check_integers(name, "(): source", source);
  check_integers(name, "(): target", target);
  check_device(name, "(): source", source, x.device(), "x");
  check_device(name, "(): target", target, x.device(), "x");
  TORCH_SYM_CHECK(target.sym_size(0).sym_eq(source.sym_size(0)), name, "(): target: expected ", source.sym_size(0),
                  " entries, as many as source has, but got ", target.sym_size(0));
  check_weight(name, weight, x, d, source.sym_size(0));
  return d;
}

// The edges by target. Without the list by source, a backward pass makes it.
Edges edges_of(const Tensor& source, const Tensor& target, const SymInt& size) {
  const auto [order, offsets] = plan_of(target, size);
  return {source.index_select(0, order), offsets, order};
}

Tensor gather_sum(const Tensor& x, const Tensor& source, const Tensor& target, SymInt size, int64_t dim,
                  const OptionalTensor& weight, OptionalDtype dtype) {
  const int64_t d = check_messages<Operation::sum>(x, source, target, weight, dim);
  return along(x, tensor_of(weight), edges_of(source, target, size), {}, d, dtype);
}

template <Operation op>
Tensor& gather_into(const Tensor& x, const Tensor& source, const Tensor& target, SymInt size, int64_t dim,
                    const OptionalTensor& weight, OptionalDtype dtype, Tensor& out) {
  const int64_t d = check_messages<op>(x, source, target, weight, dim);
  return along_into<op>(x, weight, edges_of(source, target, size), {}, d, dtype, out);
}

template <Operation op>
Tensor gather_reduce(const Tensor& x, const Tensor& source, const Tensor& target, SymInt size, int64_t dim,
                     OptionalDtype dtype) {
  const int64_t d = check_messages<op>(x, source, target, {}, dim);
  return along<op>(x, {}, edges_of(source, target, size), {}, d, dtype);
}

template <Operation op>
Tensor& gather_reduce_out(const Tensor& x, const Tensor& source, const Tensor& target, SymInt size, int64_t dim,
                          OptionalDtype dtype, Tensor& out) {
  return gather_into<op>(x, source, target, std::move(size), dim, {}, dtype, out);
}

// --- index_add and scatter_add ----------------------------------------------------------------------------------------------

// The type that sums of elements of this dtype have before they are rounded.
at::ScalarType sum_type(at::ScalarType type) {
  if (type == at::kBool) return type;
  return at::isIntegralType(type, /*includeBool=*/false) ? at::kLong : at::toOpMathType(type);
}

// Raises torch's error unless `alpha` may multiply sums of this dtype.
void check_alpha(const char* name, const at::Scalar& alpha, at::ScalarType type) {
  TORCH_CHECK(at::isComplexType(type) || !alpha.isComplex(), name,
              "(): For non-complex input tensors, argument alpha must not be a complex number.");
  TORCH_CHECK(!at::isIntegralType(type, /*includeBool=*/true) || !alpha.isFloatingPoint(), name,
              "(): For integral input tensors, argument alpha must not be a floating point number.");
  TORCH_CHECK(can_be_alpha(alpha, type), name, "(): alpha: value cannot be converted to type ", type,
              " without overflow, but is ", alpha);
}

// A number of a traced call as it is now. A bool is 0 or 1.
at::Scalar concrete(const at::Scalar& x) {
  if (x.isBoolean()) return x.toLong();
  if (x.isSymInt()) return x.toSymInt().guard_int(__FILE__, __LINE__);
  if (x.isSymFloat()) return x.toSymFloat().guard_float(__FILE__, __LINE__);
  return x;
}

// x in rows, with the strides that torch's results have: where a dim has 0 or 1 elements, other ones count as contiguous, too.
Tensor in_rows(const Tensor& x) {
  if (!x.is_contiguous()) return x.contiguous();
  for (int64_t d = 0; d < x.dim(); ++d)
    if (TORCH_GUARD_OR_FALSE(x.sym_size(d).sym_le(1))) return x.reshape(-1).view_symint(x.sym_sizes());
  return x;
}

// given + alpha * sum where `counts`, which broadcasts to the sums, is not 0, and given elsewhere. The result is contiguous, as
// torch's.
Tensor added(const Tensor& given, const Tensor& sum, const Tensor& counts, const at::Scalar& alpha) {
  const at::ScalarType dtype = given.scalar_type();
  const Tensor input = in_rows(given);  // the result lies as it does
  if (!at::isFloatingType(dtype) && !input.is_complex()) return at::add(input.to(sum.scalar_type()), sum, alpha).to(dtype);
  const auto factor = [&](const Tensor& like) {
    if (alpha.isComplex() || alpha.equal(1)) return Tensor();
    return at::full(std::vector<int64_t>(like.dim(), 1), alpha, like.options());
  };
  if (!input.is_complex()) return apply(Formula::added, input, {sum, counts, factor(sum)}, dtype);
  Tensor parts = at::view_as_real(sum);
  if (alpha.isComplex()) {  // each operation is rounded, on every device
    const auto by = alpha.toComplexDouble();
    const Tensor re = parts.select(-1, 0), im = parts.select(-1, 1);
    const auto times = [](const Tensor& x, double factor) { return multiplied(x, number_like(factor, x)); };
    parts = at::stack({times(re, by.real()) - times(im, by.imag()), times(re, by.imag()) + times(im, by.real())}, -1);
  }
  return at::view_as_complex(apply(Formula::added, at::view_as_real(input.resolve_conj()),
                                   {parts, counts.unsqueeze(-1), factor(parts)}, c10::toRealValueType(dtype)));
}

// A vector along `dim` of a tensor of `rank` dims.
Tensor beside(Tensor vector, int64_t dim, int64_t rank) {
  for (int64_t d = 0; d < rank; ++d)
    if (d != dim) vector = vector.unsqueeze(d < dim ? 0 : -1);
  return vector;
}

// Sums by index, added to `input`, whose other dims are the source's.
Tensor add_rows(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& source, const at::Scalar& alpha) {
  const auto [sum, offsets] = sums(source, index, input.sym_size(dim), {}, dim, sum_type(input.scalar_type()));
  return added(input, sum, beside(offsets.diff(), dim, input.dim()), alpha);
}

void check_index_add(const char* name, const Tensor& input, const Tensor& index, const Tensor& source, int64_t dim) {
  TORCH_CHECK_INDEX(index.dim() <= 1, name, "(): Index is supposed to be a vector, but got dim: ", index.dim(),
                    " with type: ", index.scalar_type(), " and size: ", index.sym_sizes());
  TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt, name,
              "(): Expected dtype int32/int64 for index but got: ", index.scalar_type());
  TORCH_CHECK(input.scalar_type() == source.scalar_type(), name, "(): self (", input.scalar_type(), ") and source (",
              source.scalar_type(), ") must have the same scalar type");
  for (const Tensor* each : {&index, &source})
    TORCH_CHECK(each->device() == input.device(), name, "(): Expected all tensors to be on the same device, but found ",
                each->device(), " and ", input.device());
  bool fits = input.dim() == source.dim();
  for (int64_t d = 0; fits && d < input.dim(); ++d)
    fits = d == dim || TORCH_GUARD_OR_TRUE(input.sym_size(d).sym_eq(source.sym_size(d)));
  TORCH_CHECK(fits, name,
              "(): source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = ",
              input.sym_sizes(), " source.shape = ", source.sym_sizes());
  const SymInt entries = index.sym_numel(), rows = source.dim() == 0 ? SymInt(1) : source.sym_size(dim);
  TORCH_SYM_CHECK(entries.sym_eq(rows), name, "(): Number of indices (", entries, ") should be equal to source.size(dim): (",
                  rows, "), for dim: ", dim);
}

// True if the index is the same for all positions of the other dims.
bool is_one_vector(const Tensor& index, int64_t dim) {
  for (int64_t d = 0; d < index.dim(); ++d)
    if (d != dim && !TORCH_GUARD_OR_FALSE(index.sym_size(d).sym_eq(1)) && !TORCH_GUARD_OR_FALSE(index.sym_stride(d).sym_eq(0)))
      return false;
  return true;
}

void check_scatter(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src) {
  TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
              "scatter(): Expected dtype int32/int64 for index");
  TORCH_CHECK(input.scalar_type() == src.scalar_type(), "scatter(): Expected self.dtype to be equal to src.dtype");
  for (const Tensor* each : {&index, &src})
    TORCH_CHECK(each->device() == input.device(), "scatter(): Expected all tensors to be on the same device, but found ",
                each->device(), " and ", input.device());
  if (TORCH_GUARD_OR_FALSE(index.sym_numel().sym_eq(0))) return;
  const auto rank = [](const Tensor& x) { return std::max<int64_t>(x.dim(), 1); };
  TORCH_CHECK(rank(index) == rank(input), "Index tensor must have the same number of dimensions as self tensor");
  TORCH_CHECK(rank(index) == rank(src), "Index tensor must have the same number of dimensions as src tensor");
  bool fits = true;
  for (int64_t d = 0; d < index.dim(); ++d) {
    const auto within = [&](const Tensor& x) {
      return TORCH_GUARD_OR_TRUE(index.sym_size(d).sym_le(x.dim() == 0 ? SymInt(1) : x.sym_size(d)));
    };
    fits &= within(src) && (d == dim || within(input));
  }
  TORCH_CHECK(fits, "Expected index ", index.sym_sizes(), " to be no larger than self ", input.sym_sizes(),
              " apart from dimension ", dim, " and to be no larger size than src ", src.sym_sizes());
}

// The number of each entry's output, counted in row-major order, as a vector. It is -1 where the index is out of range.
Tensor places_of(const Tensor& input, int64_t dim, const Tensor& index) {
  const SymInt size = input.sym_size(dim);
  SymInt stride = 1;
  Tensor place;
  for (int64_t d = input.dim(); d-- > 0;) {
    const Tensor own = d == dim ? index.to(at::kLong)
                                : beside(at::arange(index.sym_size(d), index.options().dtype(at::kLong)), d, input.dim());
    const Tensor shift = own * stride;
    place = place.defined() ? place + shift : shift;
    stride = stride * input.sym_size(d);
  }
  return at::where(index.lt(0).logical_or(index.ge(size)), -1, place).reshape(-1);
}

// index_add of single elements.
Tensor add_elements(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src) {
  const auto [sum, offsets] =
      sums(src.reshape(-1), places_of(input, dim, index), input.sym_numel(), {}, 0, sum_type(input.scalar_type()));
  return added(input, sum.reshape_symint(input.sym_sizes()), offsets.diff().reshape_symint(input.sym_sizes()), 1);
}

// index_add of a vector, for a part of the input that may be smaller in other dims.
Tensor add_vector(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src) {
  Tensor vector = index, rows = src;
  std::vector<SymInt> missing;
  bool whole = true;
  for (int64_t d = input.dim(); d-- > 0;) {
    if (d != dim) vector = vector.select(d, 0);
    const SymInt more = d == dim ? SymInt(0) : input.sym_size(d) - index.sym_size(d);
    whole &= TORCH_GUARD_OR_FALSE(more.sym_eq(0));
    missing.insert(missing.end(), {0, more});
  }
  if (whole) return add_rows(input, dim, vector, rows, 1);
  const auto [sum, offsets] = sums(rows, vector, input.sym_size(dim), {}, dim, sum_type(input.scalar_type()));
  const double nothing = at::isIntegralType(sum.scalar_type(), /*includeBool=*/true) ? 0.0 : -0.0;  // x + -0.0 is x
  return added(input, at::constant_pad_nd_symint(sum, missing, nothing), beside(offsets.diff(), dim, input.dim()), 1);
}

// A scatter by `call`, of tensors with a dim at least, whose src has the shape of the index.
template <class Call>
Tensor scattered(const char* name, const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src, Call call) {
  const int64_t d = at::maybe_wrap_dim(dim, input.dim());
  check_scatter(input, d, index, src);
  if (TORCH_GUARD_OR_FALSE(index.sym_numel().sym_eq(0))) {
    const Tensor copy = input.clone(at::MemoryFormat::Contiguous);
    if (!is_tracked(src)) return copy;
    return copy - src.reshape(-1).narrow(0, 0, 0).sum();  // src gets a gradient, of zeros; x - 0 is x, even where that is -0
  }
  const auto with_dim = [](const Tensor& x) { return x.dim() == 0 ? x.unsqueeze(0) : x; };
  const Tensor self = with_dim(input), entries = with_dim(index);
  Tensor taken = with_dim(src);
  for (int64_t k = 0; k < taken.dim(); ++k)
    if (!TORCH_GUARD_OR_FALSE(taken.sym_size(k).sym_eq(entries.sym_size(k))))
      taken = taken.narrow_symint(k, 0, entries.sym_size(k));
  try {
    const Tensor result = call(self, d, entries, taken);
    return input.dim() == 0 ? result.squeeze(0) : result;
  } catch (const c10::IndexError&) {  // torch's class
    TORCH_CHECK(false, name, "(): an index is out of bounds for dimension ", d, " with size ", self.sym_size(d));
  }
}

// torch.autocast promotes both to the wider one on CUDA.
Tensor scatter_add_autocast(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::AutocastCUDA);
  const at::ScalarType type =
      at::autocast::promote_type(at::autocast::get_lower_precision_fp_from_device_type(at::kCUDA), at::kCUDA, input, src);
  const auto cast = [&](const Tensor& x) { return at::autocast::cached_cast(type, x, at::kCUDA); };
  static const auto handle = find<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&)>("scatter_add");
  return handle.call(cast(input), dim, index, cast(src));
}

// --- index_reduce and scatter_reduce ----------------------------------------------------------------------------------------

// How entries are reduced. include_self: the input's element is reduced with the entries of its output.
struct How {
  Operation op = Operation::sum;
  bool include_self = true;
};

How how_of(const char* name, const Tensor& input, std::string_view reduce, bool include_self) {
  constexpr std::pair<std::string_view, Operation> kKnown[] = {{"sum", Operation::sum},
                                                               {"prod", Operation::prod},
                                                               {"mean", Operation::mean},
                                                               {"amax", Operation::_amax},
                                                               {"amin", Operation::_amin}};
  const auto* const found =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const auto& known) { return known.first == reduce; });
  TORCH_CHECK(found != std::end(kKnown), name, "(): Expected reduce to be one of sum, prod, mean, amax or amin but got ",
              reduce, ".");
  const at::ScalarType type = input.scalar_type();
  const bool has_mean = type != at::kBool && type != at::kUInt64;
  TORCH_CHECK_NOT_IMPLEMENTED(reduce == "sum" || (reduce == "mean" ? has_mean : !input.is_complex()), name,
                              "(): reduce: there is no '", reduce, "' of ", type);
  return {found->second, include_self};
}

// The products of rows by index, before they are rounded, and the offsets of their entries in the sort.
Pair products(const Tensor& source, const Tensor& index, const SymInt& size, int64_t dim, at::ScalarType type) {
  static const auto prod = find<Tensor(const Tensor&, const Tensor&, int64_t, OptionalDtype)>("segment_prod");
  const auto [order, offsets] = plan_of(index, size);
  const Tensor rows = along(source.movedim(dim, 0), {}, {order, {}, {}}, {}, 0, source.scalar_type());
  return {prod.call(rows, offsets, 0, type).movedim(0, dim), offsets};
}

// Quotients of sums and counts, which broadcast to them, rounded once to `dtype`. Those of integers are rounded down.
Tensor quotients(const Tensor& sums, const Tensor& counts, at::ScalarType dtype) {
  if (at::isIntegralType(sums.scalar_type(), /*includeBool=*/true)) return sums.floor_divide(counts).to(dtype);
  return apply(Formula::divided, sums, {{}, counts}, dtype);
}

template <Operation op>
Tensor extremes(const Tensor& source, const Tensor& index, const SymInt& size, int64_t dim) {
  const auto [order, offsets] = plan_of(index, size);
  return along<op>(source, {}, {order, offsets, order}, {index, {}, {}}, dim, {});
}

Tensor extremes_of(Operation op, const Tensor& source, const Tensor& index, const SymInt& size, int64_t dim) {
  return op == Operation::_amax ? extremes<Operation::_amax>(source, index, size, dim)
                                : extremes<Operation::_amin>(source, index, size, dim);
}

// The extrema of the input's elements and their entries. All are reduced at once: of zeros with both signs the contract takes
// one, which torch's maximum need not, and equal elements share a gradient equally.
Tensor extremes_with_self(Operation op, const Tensor& input, int64_t dim, const Tensor& index, const Tensor& source) {
  const SymInt size = input.sym_size(dim);
  return extremes_of(op, at::cat({input, source}, dim), at::cat({at::arange(size, index.options()), index}), size, dim);
}

// The results of outputs with entries, in the type of sums, and the offsets of the entries in the sort.
Pair without_self(const Tensor& source, const Tensor& index, const SymInt& size, int64_t dim, const How& how) {
  const at::ScalarType type = sum_type(source.scalar_type());
  if (how.op == Operation::prod) return products(source, index, size, dim, type);
  if (how.op == Operation::_amax || how.op == Operation::_amin) {
    const auto [order, offsets] = plan_of(index, size);
    return {extremes_of(how.op, source, index, size, dim).to(type), offsets};
  }
  auto [sum, offsets] = sums(source, index, size, {}, dim, type);
  if (how.op == Operation::mean) sum = quotients(sum, beside(offsets.diff().clamp_min(1), dim, source.dim()), type);
  return {sum, offsets};
}

// Rows by index, reduced into `input`, whose other dims are the source's.
Tensor reduce_rows(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& source, const How& how) {
  if (how.op == Operation::sum && how.include_self) return add_rows(input, dim, index, source, 1);
  const at::ScalarType dtype = input.scalar_type(), type = sum_type(dtype);
  const SymInt size = input.sym_size(dim);
  const auto among = [&](const Tensor& offsets) { return beside(offsets.diff(), dim, input.dim()); };
  Tensor result;
  if (!how.include_self) {
    const auto [found, offsets] = without_self(source, index, size, dim, how);
    result = at::where(among(offsets).ne(0), found, input.to(type));
  } else if (how.op == Operation::mean) {
    const auto [sum, offsets] = sums(source, index, size, {}, dim, type);
    result = quotients(added(input.to(type), sum, among(offsets), 1), among(offsets) + 1, dtype);
  } else if (how.op == Operation::prod) {
    const Tensor own = input.to(type), product = std::get<0>(products(source, index, size, dim, type));
    result = at::isFloatingType(dtype) ? multiplied(own, product) : own * product;  // of no entries it is 1
  } else {
    result = extremes_with_self(how.op, input, dim, index, source);
  }
  return in_rows(result.to(dtype));
}

// True if the index has all places of the input's other dims.
bool covers(const Tensor& input, int64_t dim, const Tensor& index) {
  for (int64_t d = 0; d < input.dim(); ++d)
    if (d != dim && !TORCH_GUARD_OR_FALSE(index.sym_size(d).sym_eq(input.sym_size(d)))) return false;
  return true;
}

Tensor reduce_vector(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src, const How& how) {
  Tensor vector = index;
  for (int64_t d = input.dim(); d-- > 0;)
    if (d != dim) vector = vector.select(d, 0);
  return reduce_rows(input, dim, vector, src, how);
}

Tensor reduce_elements(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src, const How& how) {
  return reduce_rows(input.reshape(-1), 0, places_of(input, dim, index), src.reshape(-1), how)
      .reshape_symint(input.sym_sizes());
}

// `name` is the function that was called.
Tensor index_reduced(const char* name, const Tensor& input, int64_t dim, const Tensor& index, const Tensor& source,
                     std::string_view reduce, bool include_self) {
  const int64_t d = at::maybe_wrap_dim(dim, input.dim());
  check_index_add(name, input, index, source, d);
  const How how = how_of(name, input, reduce, include_self);
  const Tensor vector = index.reshape(-1);
  if (input.dim() > 0) return reduce_rows(input, d, vector, source, how);
  return reduce_rows(input.unsqueeze(0), 0, vector, source.unsqueeze(0), how).squeeze(0);
}

// --- embeddings -------------------------------------------------------------------------------------------------------------

// _embedding reads rows of a table. Entries of the row `padding` give it no gradient.
constexpr const char* kEmbedding = "_embedding";
GPUREDUCE_HANDLE(padded_embedding, kEmbedding, Tensor(const Tensor&, const Tensor&, SymInt, int64_t))

Tensor rows_of(const Tensor& table, const Tensor& rows, int64_t dim) {
  return along(table, {}, {rows, {}, {}}, {}, dim, table.scalar_type());
}

Tensor embedding_rows(const Tensor& table, const Tensor& rows, SymInt, int64_t dim) { return rows_of(table, rows, dim); }

struct EmbeddingFacts {
  SymInt size, padding;
  int64_t dim = 0;
  at::ScalarType dtype = at::kFloat;

  // Calls f with each member, in a fixed order.
  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.size);
    f(self.padding);
    f(self.dim);
    f(self.dtype);
  }
};

struct EmbeddingRule : RuleOf<EmbeddingFacts> {
  static constexpr std::array<bool, 1> kKept = {false};  // the rows

  static std::string name() { return "gpureduce_embedding_backward"; }

  // Entries of `padding` are sorted behind all rows, where nobody reads them.
  static variable_list gradients(variable_list grads, const EmbeddingFacts& facts, const std::array<Tensor, 1>& kept) {
    if (!grads[0].defined()) return {Tensor()};
    const auto [order, offsets] = plan_of(at::where(kept[0].eq(facts.padding), facts.size, kept[0]), facts.size + 1);
    return {along(grads[0], {}, {order, offsets.slice_symint(0, 0, facts.size + 1), {}}, {}, facts.dim, facts.dtype)};
  }
};

Tensor embedding_differentiable(c10::DispatchKeySet keys, const Tensor& table, const Tensor& rows, SymInt padding,
                                int64_t dim) {
  return with_derivatives<EmbeddingRule>(
      std::tie(table),
      [&] { return padded_embedding().redispatch(keys & c10::after_autograd_keyset, table, rows, padding, dim); },
      [&] {
        const int64_t d = at::maybe_wrap_dim(dim, table.dim());
        return EmbeddingFacts{table.sym_size(d), padding, d, table.scalar_type()};
      },
      [&](const Tensor&) { return std::array{rows}; },
      [&](const Tensor&) { return rows_of(table._fw_grad(/*level=*/0), rows, dim); });
}

Tensor embedding_batched(const Tensor& given_table, const Tensor& given_rows, SymInt padding, int64_t dim) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(kEmbedding);
  const auto [table, table_batched] = in_front(given_table, level);
  const auto [rows, rows_batched] = in_front(given_rows, level);
  const int64_t d = at::maybe_wrap_dim(dim, table.dim() - table_batched) + table_batched;
  if (!rows_batched) {
    const Tensor found = padded_embedding().call(table, rows, padding, d);
    return table_batched ? with_batch(found, 0, level) : found;
  }
  if (!table_batched) {  // one call for all
    const Tensor found = padded_embedding().call(table, rows.reshape(-1), padding, d);
    const SymInt count = rows.sym_size(0), each = rows.sym_size(1);
    std::vector<SymInt> sizes = found.sym_sizes().vec();
    sizes[d] = count;
    sizes.insert(sizes.begin() + d + 1, each);
    return with_batch(found.reshape_symint(sizes), d, level);
  }
  return call_per_element("embedding()", rows.sym_size(0), level, [&, &table = table, &rows = rows](int64_t i) {
    return padded_embedding().call(table.select(0, i), rows.select(0, i), padding, d - 1);
  });
}

void check_table(const char* name, const Tensor& input, const Tensor& weight) {
  const char* const kinds = "' to have one of the following scalar types: Long, Int; but got ";
  TORCH_CHECK(weight.dim() == 2, name, "(): 'weight' must be 2-D");
  TORCH_CHECK(input.scalar_type() == at::kLong || input.scalar_type() == at::kInt, name,
              "(): Expected tensor for argument #1 'indices", kinds, input.scalar_type(), " instead");
  TORCH_CHECK(input.device() == weight.device(), name, "(): Expected all tensors to be on the same device, but found ",
              input.device(), " and ", weight.device());
}

Tensor embedding(const Tensor& input, const Tensor& weight, std::optional<SymInt> padding_idx) {
  check_table("embedding", input, weight);
  const SymInt count = weight.sym_size(0);
  const Tensor flat = input.reshape(-1);
  Tensor found;
  if (padding_idx) {
    TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(padding_idx->sym_lt(count)) && TORCH_GUARD_OR_TRUE((-count).sym_le(*padding_idx)),
                      "embedding(): Padding_idx must be within num_embeddings");
    const bool negative = TORCH_GUARD_OR_FALSE(padding_idx->sym_lt(0));
    found = padded_embedding().call(weight, flat, negative ? *padding_idx + count : *padding_idx, 0);
  } else {
    found = rows_of(weight, flat, 0);
  }
  std::vector<SymInt> sizes = input.sym_sizes().vec();
  sizes.push_back(weight.sym_size(1));
  return found.reshape_symint(sizes);
}

// --- bags -------------------------------------------------------------------------------------------------------------------

// The entries of bags: bag b has those from ends[b] to before ends[b + 1]. Others are not read.
struct Bags { Tensor entries, ends, weights; };

// Raises torch's errors.
void check_bags(const Tensor& input, const Tensor& weight, const OptionalTensor& offsets, std::string_view mode,
                const OptionalTensor& per_sample_weights) {
  constexpr const char* kName = "embedding_bag";
  check_table(kName, input, weight);
  TORCH_CHECK_VALUE(input.dim() == 1 || input.dim() == 2, kName,
                    "(): input has to be 1D or 2D Tensor, but got Tensor of dimension ", input.dim());
  TORCH_CHECK_VALUE(input.dim() == 1 || !offsets, kName, "(): offsets: expected None, as the rows of a 2D input are its bags");
  TORCH_CHECK_VALUE(input.dim() == 2 || (offsets && offsets->dim() == 1), kName, "(): offsets has to be a 1D Tensor, but got ",
                    offsets ? std::to_string(offsets->dim()) + " dims" : "None");
  TORCH_CHECK_VALUE(mode == "sum" || mode == "mean" || mode == "max", kName,
                    "(): mode has to be one of sum, mean or max, but is ", mode);
  if (!per_sample_weights) return;
  TORCH_CHECK_VALUE(per_sample_weights->sym_sizes() == input.sym_sizes(), kName, "(): If per_sample_weights (",
                    per_sample_weights->sym_sizes(), ") is not None, then it must have the same shape as the input (",
                    input.sym_sizes(), ")");
  TORCH_CHECK_NOT_IMPLEMENTED(mode == "sum", kName,
                              "(): per_sample_weights was not None. per_sample_weights is only supported for mode='sum' (got "
                              "mode='",
                              mode, "').");
  TORCH_CHECK(per_sample_weights->scalar_type() == weight.scalar_type(), kName,
              "(): Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 "
              "'per_sample_weights'; but type ",
              weight.scalar_type(), " does not equal ", per_sample_weights->scalar_type());
}

Bags bags_of(const Tensor& input, const OptionalTensor& offsets, const OptionalTensor& weights, bool include_last_offset) {
  const Tensor flat = weights ? weights->reshape(-1) : Tensor();
  if (input.dim() == 2) {
    const Tensor ends = at::arange(input.sym_size(0) + 1, input.options().dtype(at::kLong)) * input.sym_size(1);
    return {input.reshape(-1), ends, flat};
  }
  if (include_last_offset) return {input, *offsets, flat};
  return {input, at::cat({*offsets, offsets->new_zeros({1}).add(input.sym_size(0))}), flat};
}

// Entries of `padding` are moved behind all others, out of the bags. The others keep their order.
Bags without_padding(const Bags& bags, const SymInt& padding) {
  const Tensor kept = bags.entries.ne(padding);
  const Tensor order = std::get<0>(plan_of(kept.logical_not().to(at::kInt), 2));
  const Tensor before = at::cat({bags.entries.new_zeros({1}, at::kLong), kept.cumsum(0)});  // kept ones before each place
  const SymInt count = bags.entries.sym_size(0);
  const Tensor wrong = bags.ends.lt(0).logical_or(bags.ends.gt(count));  // stay what they are, and are refused
  const Tensor ends = at::where(wrong, bags.ends.to(at::kLong), before.index_select(0, bags.ends.clamp(0, count)));
  return {bags.entries.index_select(0, order), ends, bags.weights.defined() ? bags.weights.index_select(0, order) : Tensor()};
}

// `name` is the function that was called.
Tensor index_added(const char* name, const Tensor& input, int64_t dim, const Tensor& index, const Tensor& source,
                   const at::Scalar& given_alpha) {
  const int64_t d = at::maybe_wrap_dim(dim, input.dim());
  const at::Scalar alpha = concrete(given_alpha);
  check_index_add(name, input, index, source, d);
  check_alpha(name, alpha, input.scalar_type());
  const Tensor vector = index.reshape(-1);
  if (input.dim() > 0) return add_rows(input, d, vector, source, alpha);
  return add_rows(input.unsqueeze(0), 0, vector, source.unsqueeze(0), alpha).squeeze(0);
}

}  // namespace

bool can_be_alpha(const at::Scalar& alpha, at::ScalarType type) {
  try {
    switch (type) {
#define GPUREDUCE_CONVERT(T, name) \
  case at::ScalarType::name: static_cast<void>(alpha.to##name()); break;
      AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(GPUREDUCE_CONVERT)
      GPUREDUCE_CONVERT(uint16_t, UInt16)
      GPUREDUCE_CONVERT(uint32_t, UInt32)
      GPUREDUCE_CONVERT(uint64_t, UInt64)
#undef GPUREDUCE_CONVERT
      default: break;
    }
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

Tensor index_add(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& source, const at::Scalar& alpha) {
  return index_added("index_add", input, dim, index, source, alpha);
}

Tensor scatter_add(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src) {
  return scattered(
      "scatter_add", input, dim, index, src, [](const Tensor& self, int64_t d, const Tensor& entries, const Tensor& taken) {
        return is_one_vector(entries, d) ? add_vector(self, d, entries, taken) : add_elements(self, d, entries, taken);
      });
}

Tensor index_reduce(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& source, std::string_view reduce,
                    bool include_self) {
  return index_reduced("index_reduce", input, dim, index, source, reduce, include_self);
}

Tensor scatter_reduce(const Tensor& input, int64_t dim, const Tensor& index, const Tensor& src, std::string_view reduce,
                      bool include_self) {
  const char* const name = "scatter_reduce";
  const How how = how_of(name, input, reduce, include_self);
  return scattered(
      name, input, dim, index, src, [&](const Tensor& self, int64_t d, const Tensor& entries, const Tensor& taken) {
        return is_one_vector(entries, d) && covers(self, d, entries) ? reduce_vector(self, d, entries, taken, how)
                                                                     : reduce_elements(self, d, entries, taken, how);
      });
}

Tensor embedding_bag(const Tensor& input, const Tensor& weight, const OptionalTensor& offsets, std::string_view mode,
                     const OptionalTensor& per_sample_weights, bool include_last_offset, std::optional<SymInt> padding_idx) {
  constexpr const char* kName = "embedding_bag";
  check_bags(input, weight, offsets, mode, per_sample_weights);
  if (offsets) check_integers(kName, "(): offsets", *offsets);
  TORCH_CHECK(!offsets || !include_last_offset || TORCH_GUARD_OR_TRUE(offsets->sym_size(0).sym_gt(0)), kName,
              "(): include_last_offset: number of offset should be at least 1");
  Bags bags = bags_of(input, offsets, per_sample_weights, include_last_offset);
  if (padding_idx) {
    const SymInt count = weight.sym_size(0);
    TORCH_CHECK(TORCH_GUARD_OR_TRUE(padding_idx->sym_lt(count)) && TORCH_GUARD_OR_TRUE((-count).sym_le(*padding_idx)), kName,
                "(): padding_idx must be within the number of embeddings, from ", -count, " to ", count - 1, ", but got ",
                *padding_idx);
    bags = without_padding(bags, TORCH_GUARD_OR_FALSE(padding_idx->sym_lt(0)) ? *padding_idx + count : *padding_idx);
  }
  const at::ScalarType dtype = weight.scalar_type();
  const Edges list{bags.entries, bags.ends, {}};
  if (mode == "sum") return along(weight, bags.weights, list, {}, 0, dtype);
  if (TORCH_GUARD_OR_FALSE(bags.ends.sym_size(0).sym_eq(1))) return weight.narrow(0, 0, 0);  // no bag reads a row
  const Tensor found = mode == "max" ? along<Operation::_amax>(weight, {}, list, {}, 0, dtype)
                                     : along<Operation::mean>(weight, {}, list, {}, 0, dtype);
  return found.masked_fill(bags.ends.diff().eq(0).unsqueeze(-1), 0);  // torch's result of no rows
}

Tensor bincount(const Tensor& input, const OptionalTensor& weights, SymInt minlength) {
  constexpr const char* kWords = "bincount only supports 1-d non-negative integral inputs.";
  TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(input.scalar_type(), /*includeBool=*/false), kWords);
  const at::ScalarType type = input.scalar_type();
  const bool is_wide_unsigned = type == at::kUInt16 || type == at::kUInt32 || type == at::kUInt64;  // torch's has no kernels
  if (!weights) {  // counts are exact in any order; torch reads its input twice, and nobody may change it in between
    const Tensor counted = is_wide_unsigned ? input.to(at::kLong) : input.is_cpu() ? input.clone() : input;
    return at::bincount_symint(counted, {}, std::move(minlength));
  }
  TORCH_SYM_CHECK(minlength.sym_ge(0), "minlength should be >= 0");
  TORCH_CHECK(input.dim() == 1, kWords);
  TORCH_CHECK(weights->dim() == 1 && TORCH_GUARD_OR_TRUE(weights->sym_size(0).sym_eq(input.sym_size(0))),
              "weights should be 1-d and have the same length as input");
  TORCH_CHECK(weights->device() == input.device(), "bincount(): Expected all tensors to be on the same device, but found ",
              weights->device(), " and ", input.device());
  if (TORCH_GUARD_OR_FALSE(input.sym_numel().sym_eq(0)))
    return at::zeros_symint({std::move(minlength)}, input.options().dtype(at::kLong));
  const Tensor index = input.to(at::kLong);
  const auto [least, most] = index.aminmax();
  TORCH_CHECK(least.item<int64_t>() >= 0, kWords);
  const SymInt size = std::max<SymInt>(most.item().toSymInt() + 1, minlength);
  const at::ScalarType dtype = weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  return std::get<0>(sums(dtype == at::kFloat ? *weights : weights->to(dtype), index, size, {}, 0, dtype));
}

namespace {

Tensor& index_add_into(Tensor& input, int64_t dim, const Tensor& index, const Tensor& source, const at::Scalar& alpha) {
  return input.copy_(index_added("index_add_", input, dim, index, source, alpha));
}

Tensor& index_reduce_into(Tensor& input, int64_t dim, const Tensor& index, const Tensor& source, std::string_view reduce,
                          bool include_self) {
  return input.copy_(index_reduced("index_reduce_", input, dim, index, source, reduce, include_self));
}

template <Operation op>
void define(torch::Library& m) {
  define_composite(m, kPublic<op>, "(Tensor source, Tensor index, SymInt size, int dim=0, *, ScalarType? dtype=None",
                   &reduce_by_index<op>, &reduce_by_index_out<op>);
  define_composite(m, gathered::kName<op> + 1,
                   "(Tensor x, Tensor source, Tensor target, SymInt size, int dim=0, *, ScalarType? dtype=None",
                   &gather_reduce<op>, &gather_reduce_out<op>);
}

}  // namespace

}  // namespace gpureduce::indexed

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  using namespace gpureduce::indexed;
  define_schema(m,
                "_index_sum_values(Tensor source, Tensor index, SymInt size, Tensor? weight, ScalarType dtype) -> (Tensor sum, "
                "Tensor offsets)");
  put(m, Key::CompositeExplicitAutograd, kSumValues, named_kernel(kSumValues, &values_summed));
  put(m, Key::Autograd, kSumValues, &values_summed_differentiable);
  put(m, Key::FuncTorchBatchedDecomposition, kSumValues, &values_summed_by_plan);
  define_schema(m, "_embedding(Tensor table, Tensor rows, SymInt padding, int dim=0) -> Tensor");
  put(m, Key::CompositeExplicitAutograd, kEmbedding, named_kernel(kEmbedding, &embedding_rows));
  put(m, Key::Autograd, kEmbedding, &embedding_differentiable);
  put(m, Key::FuncTorchBatched, kEmbedding, &embedding_batched);

  define_composite(m, "index_sum",
                   "(Tensor source, Tensor index, SymInt size, int dim=0, *, Tensor? weight=None, ScalarType? dtype=None",
                   &index_sum, &reduce_by_index_into<Operation::sum>);
  define_composite(m, "gather_sum",
                   "(Tensor x, Tensor source, Tensor target, SymInt size, int dim=0, *, Tensor? weight=None, ScalarType? "
                   "dtype=None",
                   &gather_sum, &gather_into<Operation::sum>);
  define<Operation::mean>(m);
  define<Operation::_amax>(m);
  define<Operation::_amin>(m);
  define_composite(m, "index_add(Tensor input, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor", &index_add);
  define_composite(m, "index_add_(Tensor(a!) input, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor(a!)",
                   &index_add_into);
  define_composite(m, "scatter_add(Tensor input, int dim, Tensor index, Tensor src) -> Tensor", &indexed::scatter_add);
  put(m, Key::AutocastCUDA, "scatter_add", &scatter_add_autocast);
  constexpr const char* kReduced = ", str reduce, *, bool include_self=True) -> Tensor";
  const std::string by_rows = "input, int dim, Tensor index, Tensor source" + std::string(kReduced);
  define_composite(m, "index_reduce(Tensor " + by_rows, &indexed::index_reduce);
  define_composite(m, "index_reduce_(Tensor(a!) " + by_rows + "(a!)", &index_reduce_into);
  define_composite(m, "scatter_reduce(Tensor input, int dim, Tensor index, Tensor src" + std::string(kReduced),
                   &indexed::scatter_reduce);
  define_composite(m, "embedding(Tensor input, Tensor weight, SymInt? padding_idx=None) -> Tensor", &embedding);
  define_composite(
      m,
      "embedding_bag(Tensor input, Tensor weight, Tensor? offsets=None, *, str mode=\"sum\", Tensor? per_sample_weights=None, "
      "bool include_last_offset=True, SymInt? padding_idx=None) -> Tensor",
      &indexed::embedding_bag);
  define_composite(m, "bincount(Tensor input, Tensor? weights=None, SymInt minlength=0) -> Tensor", &indexed::bincount);
}
