// Replaces what torch reduces by index: index_add, scatter_add, index_reduce, scatter_reduce, index_put with accumulate=True,
// the gradient of an embedding, and bincount with weights. So the gradients of x[index], index_select and gather are ours, too,
// which autograd makes of these. Where a call cannot be ours, torch's kernel takes it unchanged.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtilsMulti.h>

#include <optional>
#include <tuple>

#include "../core/torch/applied.h"
#include "../indexed/torch.h"
#include "../indexed/torch_gathered.h"
#include "torch.h"

namespace gpureduce::replacing {

namespace {

using at::Tensor;
using Indices = c10::List<OptionalTensor>;
using Sizes = c10::SymDimVector;

// --- what is taken ----------------------------------------------------------------------------------------------------------

// False for data-dependent traced sizes.
bool same(const c10::SymInt& a, const c10::SymInt& b) { return TORCH_GUARD_OR_FALSE(a.sym_eq(b)); }
bool at_most(const c10::SymInt& a, const c10::SymInt& b) { return TORCH_GUARD_OR_FALSE(a.sym_le(b)); }

bool is_plain(const Tensor& x, at::Device device) {
  return x.layout() == at::kStrided && x.device() == device && !has_names(x, 0);
}

// True for a target and what is added to it, of a dtype that both libraries add, with elements.
bool is_pair(const Tensor& self, const Tensor& source) {
  return is_result(self.scalar_type(), self.device()) && source.scalar_type() == self.scalar_type() &&
         is_plain(self, self.device()) && is_plain(source, self.device()) && !is_empty(self) && !is_empty(source) &&
         self.dim() <= static_cast<int64_t>(at::dim_bitset_size);
}

bool is_index(const Tensor& index, at::Device device) {
  return (index.scalar_type() == at::kLong || index.scalar_type() == at::kInt) && is_plain(index, device) && !is_empty(index);
}

bool is_apart(const Tensor& written, const Tensor& read) {
  const at::MemOverlapStatus status = at::get_overlap_status(written, read);
  return status != at::MemOverlapStatus::Full && status != at::MemOverlapStatus::Partial;
}

// True if ours may write to a tensor of the call, as torch does.
template <class... Read>
bool is_writable(const Tensor& written, const Tensor& like, const Read&... read) {
  return is_plain_out(written, like, like.scalar_type()) && (is_apart(written, read) && ...);
}

// --- few entries ------------------------------------------------------------------------------------------------------------

// True if there are so few entries that the sums of all outputs would take longer. No guard on traced sizes that may change.
bool is_few(const c10::SymInt& entries, const c10::SymInt& outputs) {
  const auto some = entries.maybe_as_int(), all = outputs.maybe_as_int();
  return some && all && *some <= *all / 8;
}

// What each entry's output becomes, where no other output is looked at. Entries lie along `dim`.
//
// numbers  the number of each entry's output: equal ones have one output
// before   the output of each entry
//
// reduce   (outputs, dim, index, values) -> the outputs after it, as of an index_add
//
// Outputs with entries are numbered anew, in a row. Entries of one output have equal results, so that the order in which a
// caller writes these does not matter.
template <class Reduce>
Tensor after_reducing(const Tensor& numbers, const Tensor& before, const Tensor& values, int64_t dim, Reduce reduce) {
  const auto [sorted, order] = at::sort(numbers, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const c10::SymInt count = numbers.sym_size(0);
  const Tensor next = sorted.slice_symint(0, 1).ne(sorted.slice_symint(0, 0, count - 1)).to(at::kLong).cumsum(0);
  const Tensor own = at::zeros_like(order).scatter(0, order, at::cat({at::zeros({1}, next.options()), next}));
  const Tensor outputs = before.index_copy(dim, own, before);
  return reduce(outputs, dim, own, values).index_select(dim, own);
}

// Adds `alpha` times the values to outputs.
auto adding(const at::Scalar& alpha) {
  return [alpha](const Tensor& outputs, int64_t dim, const Tensor& index, const Tensor& values) {
    return indexed::index_add(outputs, dim, index, values, alpha);
  };
}

auto reducing(std::string_view reduce, bool include_self) {
  return [=](const Tensor& outputs, int64_t dim, const Tensor& index, const Tensor& values) {
    return indexed::index_reduce(outputs, dim, index, values, reduce, include_self);
  };
}

// --- kernels ----------------------------------------------------------------------------------------------------------------

// A function that adds to its first argument. Function has:
//
// ours           (self, rest...) -> the result
// takes          (self, rest...) -> whether it is ours
// has_few        (self, rest...) -> whether there are few entries
// few<in_place>  (self, rest...) -> the result if there are few
// reads          (rest...) -> the tensors that are read, which may not be where the result is written
template <class Function, class Takes = std::remove_pointer_t<std::decay_t<decltype(Function::takes)>>>
struct Adding;
template <class Function, class... Rest>
struct Adding<Function, bool(const Tensor&, Rest...)> : Refusing {
  static bool takes(const Tensor& self, Rest... rest) { return Function::takes(self, rest...); }
  template <bool traced>
  static Tensor ours(Keys, const Tensor& self, Rest... rest) {
    return Function::has_few(self, rest...) ? Function::template few<false>(self, rest...) : Function::ours(self, rest...);
  }

  struct InPlace : Refusing {
    static bool takes(Tensor& self, Rest... rest) { return Function::takes(self, rest...) && may_write(self, self, rest...); }
    template <bool traced>
    static Tensor& ours(Keys, Tensor& self, Rest... rest) {
      if (Function::has_few(self, rest...)) Function::template few<true>(self, rest...);
      else self.copy_(Function::ours(self, rest...));
      return self;
    }
  };

  struct Out : Refusing {
    static bool takes(const Tensor& self, Rest... rest, Tensor& out) {
      return Function::takes(self, rest...) && may_write(out, self, rest...);
    }
    template <bool traced>
    static Tensor& ours(Keys keys, const Tensor& self, Rest... rest, Tensor& out) {
      return write(out, Adding::template ours<traced>(keys, self, rest...));
    }
  };

 private:
  static bool may_write(const Tensor& written, const Tensor& self, const Rest&... rest) {
    return std::apply([&](const auto&... read) { return is_writable(written, self, read...); }, Function::reads(rest...));
  }
};

// --- index_add --------------------------------------------------------------------------------------------------------------

// True if rows of the source have an index each, and fit into self.
bool are_rows(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  const int64_t rank = self.dim();
  if (!is_pair(self, source) || !is_index(index, self.device()) || index.dim() > 1) return false;
  if (dim < -rank || dim >= rank || source.dim() != rank) return false;
  for (int64_t d = 0; d < rank; ++d)
    if (!same(source.sym_size(d), d == at::maybe_wrap_dim(dim, rank) ? index.sym_numel() : self.sym_size(d))) return false;
  return true;
}

// The result of few rows.
template <bool in_place, class Reduce>
Tensor few_rows(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, Reduce reduce) {
  const Tensor at = index.reshape(-1).to(at::kLong);
  const Tensor after = after_reducing(at, self.index_select(dim, at), source, dim, reduce);
  return in_place ? self.index_copy_(dim, at, after) : self.index_copy(dim, at, after);
}

struct IndexAdd {
  static bool takes(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const at::Scalar& alpha) {
    return are_rows(self, dim, index, source) && is_factor(alpha, self.scalar_type());
  }
  static constexpr auto ours = indexed::index_add;
  static bool has_few(const Tensor& self, int64_t dim, const Tensor& index, const Tensor&, const at::Scalar&) {
    return is_few(index.sym_numel(), self.sym_size(dim));
  }
  template <bool in_place>
  static Tensor few(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const at::Scalar& alpha) {
    return few_rows<in_place>(self, dim, index, source, adding(alpha));
  }
  static auto reads(int64_t, const Tensor& index, const Tensor& source, const at::Scalar&) { return std::tie(index, source); }

 private:
  // torch refuses a number that the dtype cannot hold.
  static bool is_factor(const at::Scalar& alpha, at::ScalarType type) {
    if (!indexed::can_be_alpha(alpha, type)) return false;
    if (at::isComplexType(type)) return true;
    if (alpha.isComplex() || (!at::isFloatingType(type) && !alpha.isIntegral(/*includeBool=*/true))) return false;
    return AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, type, "index_add", [&] {
      return alpha.isFloatingPoint() ? !c10::overflows<scalar_t>(alpha.toDouble()) : !c10::overflows<scalar_t>(alpha.toLong());
    });
  }
};

// --- scatter_add ------------------------------------------------------------------------------------------------------------

// True if an index has a dim for each of self's, and entries for elements of both.
bool are_elements(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  const int64_t rank = self.dim();
  if (!is_pair(self, src) || !is_index(index, self.device()) || index.scalar_type() != at::kLong) return false;
  if (dim < -rank || dim >= rank || index.dim() != rank || src.dim() != rank) return false;
  for (int64_t d = 0; d < rank; ++d) {
    if (!at_most(index.sym_size(d), src.sym_size(d))) return false;
    if (d != at::maybe_wrap_dim(dim, rank) && !at_most(index.sym_size(d), self.sym_size(d))) return false;
  }
  return true;
}

// The result of few elements.
template <bool in_place, class Reduce>
Tensor few_elements(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, Reduce reduce) {
  const int64_t rank = self.dim(), along = at::maybe_wrap_dim(dim, rank);
  Tensor numbers, values = src;
  for (int64_t d = 0; d < rank; ++d) {
    Tensor place = index;
    if (d != along) {
      at::DimVector shape(rank, 1);
      shape[d] = -1;
      place = at::arange(index.sym_size(d), index.options()).view(shape);
    }
    numbers = numbers.defined() ? numbers.mul(self.sym_size(d)).add(place) : place;
    values = values.narrow_symint(d, 0, index.sym_size(d));
  }
  const Tensor after = after_reducing(numbers.reshape(-1), self.gather(dim, index).reshape(-1), values.reshape(-1), 0, reduce)
                           .reshape_symint(index.sym_sizes());
  return in_place ? self.scatter_(dim, index, after) : self.scatter(dim, index, after);
}

struct ScatterAdd {
  static constexpr auto takes = are_elements;
  static constexpr auto ours = indexed::scatter_add;
  static bool has_few(const Tensor& self, int64_t, const Tensor& index, const Tensor&) {
    return is_few(index.sym_numel(), self.sym_numel());
  }
  template <bool in_place>
  static Tensor few(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
    return few_elements<in_place>(self, dim, index, src, adding(1));
  }
  static auto reads(int64_t, const Tensor& index, const Tensor& src) { return std::tie(index, src); }
};

// --- index_reduce and scatter_reduce ----------------------------------------------------------------------------------------

// True for the reductions of floats that both libraries have. Those of integers are exact in torch, too.
bool is_reduction(const Tensor& self, std::string_view reduce, bool has_sum) {
  return at::isFloatingType(self.scalar_type()) &&
         (reduce == "prod" || reduce == "mean" || reduce == "amax" || reduce == "amin" || (has_sum && reduce == "sum"));
}

struct IndexReduce {
  static bool takes(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, std::string_view reduce, bool) {
    return is_reduction(self, reduce, /*has_sum=*/false) && are_rows(self, dim, index, source);
  }
  static constexpr auto ours = indexed::index_reduce;
  static bool has_few(const Tensor& self, int64_t dim, const Tensor& index, const Tensor&, std::string_view, bool) {
    return is_few(index.sym_numel(), self.sym_size(dim));
  }
  template <bool in_place>
  static Tensor few(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, std::string_view reduce,
                    bool include_self) {
    return few_rows<in_place>(self, dim, index, source, reducing(reduce, include_self));
  }
  static auto reads(int64_t, const Tensor& index, const Tensor& source, std::string_view, bool) {
    return std::tie(index, source);
  }
};

struct ScatterReduce {
  static bool takes(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, std::string_view reduce, bool) {
    return is_reduction(self, reduce, /*has_sum=*/true) && are_elements(self, dim, index, src);
  }
  static constexpr auto ours = indexed::scatter_reduce;
  static bool has_few(const Tensor& self, int64_t, const Tensor& index, const Tensor&, std::string_view, bool) {
    return is_few(index.sym_numel(), self.sym_numel());
  }
  template <bool in_place>
  static Tensor few(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, std::string_view reduce,
                    bool include_self) {
    return few_elements<in_place>(self, dim, index, src, reducing(reduce, include_self));
  }
  static auto reads(int64_t, const Tensor& index, const Tensor& src, std::string_view, bool) { return std::tie(index, src); }
};

// --- index_put --------------------------------------------------------------------------------------------------------------

// self[indices] += values as an index_add: of values to `view` along `dim`, once the `count` dims from there on are one.
struct Flat {
  Indices indices;  // one for each dim of self
  Sizes read;       // the shape of self[indices]
  Tensor view;      // self with its dims in `order`, in which the indexed ones are side by side
  at::DimVector order;
  int64_t dim = 0, count = 0;
  Tensor index, values;
};

// The index tensors of each dim of self, undefined for those that are not indexed; and whether it lies in its range for sure.
struct PerDim {
  std::vector<Tensor> index;
  std::vector<bool> within;

  void push(const Tensor& one, bool is_within) {
    index.push_back(one);
    within.push_back(is_within);
  }
};

// Masks become the positions of what is true in them, one tensor per dim. Fails where ours does not take the indices.
template <bool traced>
bool expand_masks(const Tensor& self, const Indices& given, PerDim& dims) {
  for (const OptionalTensor& one : given) {
    if (!one || !one->defined()) {
      dims.push(Tensor(), true);
      continue;
    }
    const Tensor& index = *one;
    if (!is_plain(index, index.device()) || (index.device() != self.device() && !index.is_cpu())) return false;
    if (index.scalar_type() == at::kLong || index.scalar_type() == at::kInt) {
      dims.push(index.to(self.device(), at::kLong), false);
    } else if (index.scalar_type() == at::kBool && !traced && index.dim() > 0) {
      const int64_t first = static_cast<int64_t>(dims.index.size());
      if (first + index.dim() > self.dim()) return false;
      for (int64_t d = 0; d < index.dim(); ++d)
        if (index.size(d) != self.size(first + d)) return false;
      const Tensor places = index.nonzero().to(self.device());
      for (int64_t d = 0; d < index.dim(); ++d) dims.push(places.select(1, d), true);
    } else {
      return false;
    }
  }
  if (static_cast<int64_t>(dims.index.size()) > self.dim()) return false;
  while (static_cast<int64_t>(dims.index.size()) < self.dim()) dims.push(Tensor(), true);
  return true;
}

// Broadcasts `shape` with `other`, if they can be.
bool broadcast(Sizes& shape, c10::SymIntArrayRef other) {
  if (other.size() > shape.size()) shape.insert(shape.begin(), other.size() - shape.size(), c10::SymInt(1));
  for (size_t i = 1; i <= other.size(); ++i) {
    c10::SymInt& own = shape[shape.size() - i];
    const c10::SymInt& size = other[other.size() - i];
    if (same(own, 1)) own = size;
    else if (!same(size, 1) && !same(size, own)) return false;
  }
  return true;
}

// True if a tensor of these sizes can be expanded to `shape`.
bool expands(c10::SymIntArrayRef sizes, c10::SymIntArrayRef shape) {
  if (sizes.size() > shape.size()) return false;
  for (size_t i = 1; i <= sizes.size(); ++i)
    if (!same(sizes[sizes.size() - i], 1) && !same(sizes[sizes.size() - i], shape[shape.size() - i])) return false;
  return true;
}

c10::SymInt product(c10::SymIntArrayRef sizes) {
  c10::SymInt result = 1;
  for (const c10::SymInt& size : sizes) result *= size;
  return result;
}

// `sizes`, with `by` in place of the sizes of `count` dims from `dim` on.
Sizes with_sizes(c10::SymIntArrayRef sizes, int64_t dim, int64_t count, c10::SymIntArrayRef by) {
  Sizes result(sizes.begin(), sizes.begin() + dim);
  result.append(by.begin(), by.end());
  result.append(sizes.begin() + dim + count, sizes.end());
  return result;
}

// The number of each entry's output, where outputs are numbered along the indexed dims of self. An index out of range gives a
// number out of range. trusted: none is, as a backward pass knows from the forward one.
Tensor linear_index(const Tensor& self, const PerDim& dims, bool trusted) {
  Tensor linear, outside;
  int64_t count = 0;
  for (int64_t d = 0; d < self.dim(); ++d) {
    Tensor index = dims.index[d];
    if (!index.defined()) continue;
    const c10::SymInt size = self.sym_size(d);
    if (!dims.within[d] && trusted) {
      index = index.remainder(size.guard_int(__FILE__, __LINE__));
    } else if (!dims.within[d]) {
      index = at::where(index.lt(0), index.add(size), index);
      const Tensor wrong = index.lt(0).logical_or(index.ge(size));
      outside = outside.defined() ? outside.logical_or(wrong) : wrong;
    }
    linear = linear.defined() ? linear.mul(size).add(index) : index;
    ++count;
  }
  return count > 1 && outside.defined() ? linear.masked_fill(outside, -1) : linear;
}

template <bool traced>
std::optional<Flat> flattened(const Tensor& self, const Indices& given, const Tensor& values, bool trusted) {
  PerDim dims;
  if (!expand_masks<traced>(self, given, dims)) return {};
  Flat flat;
  Sizes shape;  // of the indices, broadcast
  at::DimVector indexed, others;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (dims.index[d].defined() && !broadcast(shape, dims.index[d].sym_sizes())) return {};
    (dims.index[d].defined() ? indexed : others).push_back(d);
  }
  if (indexed.empty()) return {};
  // As torch does: what is indexed goes to the front, unless it is side by side already.
  flat.count = static_cast<int64_t>(indexed.size());
  const bool side_by_side = indexed.back() - indexed.front() + 1 == flat.count;
  flat.dim = side_by_side ? indexed.front() : 0;
  flat.order.append(others.begin(), others.begin() + flat.dim);
  flat.order.append(indexed.begin(), indexed.end());
  flat.order.append(others.begin() + flat.dim, others.end());
  flat.view = self.permute(flat.order);
  const Sizes wanted = with_sizes(flat.view.sym_sizes(), flat.dim, flat.count, shape);
  const c10::SymInt entries = product(shape);
  if (!expands(values.sym_sizes(), wanted) || TORCH_GUARD_OR_TRUE(entries.sym_eq(0))) return {};
  flat.index = linear_index(self, dims, trusted).expand_symint(shape).reshape_symint({entries});
  flat.values = values.expand_symint(wanted).reshape_symint(
      with_sizes(wanted, flat.dim, static_cast<int64_t>(shape.size()), c10::SymIntArrayRef(entries)));
  flat.read = wanted;
  for (const Tensor& index : dims.index) flat.indices.push_back(optional(index));
  return flat;
}

// The result, with the dims of `view`.
Tensor added(const Flat& flat) {
  const c10::SymIntArrayRef sizes = flat.view.sym_sizes();
  const c10::SymInt outputs = product(sizes.slice(flat.dim, flat.count));
  const Tensor target = flat.view.reshape_symint(with_sizes(sizes, flat.dim, flat.count, c10::SymIntArrayRef(outputs)));
  return IndexAdd::ours(target, flat.dim, flat.index, flat.values, 1).reshape_symint(sizes);
}

bool has_few(const Flat& flat) {
  return is_few(flat.index.sym_size(0), product(flat.view.sym_sizes().slice(flat.dim, flat.count)));
}

// The result if there are few entries.
template <bool in_place>
Tensor few(const Tensor& self, const Flat& flat) {
  const Tensor before = self.index(flat.indices).reshape_symint(flat.values.sym_sizes());
  const Tensor after = after_reducing(flat.index, before, flat.values, flat.dim, adding(1)).reshape_symint(flat.read);
  return in_place ? self.index_put_(flat.indices, after) : self.index_put(flat.indices, after);
}

struct IndexPut {
  static bool takes(const Tensor& self, const Indices& indices, const Tensor& values, bool accumulate) {
    return accumulate && !indices.empty() && is_pair(self, values);
  }

  static Tensor& in_place(Keys keys, Tensor& self, const Indices& indices, const Tensor& values, bool accumulate, bool unsafe) {
    const auto otherwise = [&]() -> Tensor& {
      return original(keys, GPUREDUCE_TORCH(_index_put_impl_))(self, indices, values, accumulate, unsafe);
    };
    const Tensor here = values.dim() == 0 && values.is_cpu() ? values.to(self.device()) : values;
    if (!takes(self, indices, here, accumulate) || !is_writable(self, self, values)) return otherwise();
    for (const OptionalTensor& one : indices)
      if (one && one->defined() && !is_apart(self, *one)) return otherwise();
    const auto flat = flattened<false>(self, indices, here, unsafe && !self.is_cpu());
    if (!flat) return otherwise();
    try {
      if (has_few(*flat)) few<true>(self, *flat);
      else flat->view.copy_(added(*flat));
      return self;
    } catch (const c10::Error&) {  // as Refusing
      if (on_cuda(keys)) throw;
    }
    return otherwise();
  }

  // For tracing, where a graph has no in-place operators left. The result lies in memory as torch's does.
  static Tensor functional(Keys keys, const Tensor& self, const Indices& indices, const Tensor& values, bool accumulate) {
    if (!takes(self, indices, values, accumulate)) return {};
    const auto flat = flattened<true>(self, indices, values, false);
    if (!flat) return {};
    if (has_few(*flat)) return few<false>(self, *flat);
    at::DimVector back(flat->order.size());
    for (size_t i = 0; i < back.size(); ++i) back[flat->order[i]] = static_cast<int64_t>(i);
    const Tensor result = added(*flat).permute(back);
    bool lies_so = true;
    for (int64_t d = 0; d < self.dim(); ++d) lies_so &= same(result.sym_stride(d), self.sym_stride(d));
    return lies_so ? result : at::copy(at::empty_like(self), result);
  }
};

// --- the gradient of an embedding -------------------------------------------------------------------------------------------

struct Embedding : Refusing {
  static bool takes(const Tensor& grad, const Tensor& indices, c10::SymInt num_weights, c10::SymInt, bool scale_grad_by_freq) {
    if (scale_grad_by_freq || !is_pair(grad, grad) || !at::isFloatingType(grad.scalar_type())) return false;
    if (!is_index(indices, grad.device()) || grad.dim() != indices.dim() + 1) return false;
    for (int64_t d = 0; d < indices.dim(); ++d)
      if (!same(indices.sym_size(d), grad.sym_size(d))) return false;
    return TORCH_GUARD_OR_FALSE(num_weights.sym_gt(0));
  }

  // Entries of the padding are sorted behind all rows, where nobody reads them.
  template <bool traced>
  static Tensor ours(Keys, const Tensor& grad, const Tensor& indices, c10::SymInt num_weights, c10::SymInt padding_idx, bool) {
    const bool pads = TORCH_GUARD_OR_TRUE(padding_idx.sym_ge(0));
    Tensor rows = indices.reshape(-1);
    if (pads) rows = at::where(rows.eq(padding_idx), num_weights, rows);
    const auto [order, ends] = index_plan_operator().call(rows, pads ? num_weights + 1 : num_weights);
    const Tensor offsets = pads ? ends.slice_symint(0, 0, num_weights + 1) : ends;
    return gathered::along(grad.reshape_symint({rows.sym_size(0), grad.sym_size(-1)}), {}, {order, offsets, {}}, {}, 0, {});
  }
};

// --- embedding_bag ----------------------------------------------------------------------------------------------------------

// Sums and means. Largest rows stay torch's, which are exact in any order; their gradient is a sum. Beside the result there are
// the number of each entry's bag, and how many entries each bag has without the padding: all that backward passes need, torch's
// own, too.
enum BagMode : int64_t { kSum, kMean, kMax };

struct EmbeddingBag : Refusing {
  static bool takes(const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool, int64_t mode, bool,
                    const OptionalTensor& per_sample_weights, bool include_last_offset, int64_t) {
    if (mode != kSum && mode != kMean) return false;
    if (!is_pair(weight, weight) || !at::isFloatingType(weight.scalar_type()) || weight.dim() != 2) return false;
    if (!is_index(indices, weight.device()) || indices.dim() != 1) return false;
    if (!is_index(offsets, weight.device()) || offsets.dim() != 1 || offsets.scalar_type() != indices.scalar_type())
      return false;
    if (include_last_offset && same(offsets.sym_size(0), 1)) return false;
    if (!per_sample_weights || !per_sample_weights->defined()) return true;
    const Tensor& factor = *per_sample_weights;
    return mode == kSum && factor.scalar_type() == weight.scalar_type() && is_plain(factor, weight.device()) &&
           factor.dim() == 1 && same(factor.sym_size(0), indices.sym_size(0));
  }

  template <bool traced>
  static std::tuple<Tensor, Tensor, Tensor, Tensor> ours(Keys, const Tensor& weight, const Tensor& indices,
                                                         const Tensor& offsets, bool, int64_t mode, bool,
                                                         const OptionalTensor& per_sample_weights, bool include_last_offset,
                                                         int64_t padding) {
    if (!traced && offsets.is_cpu())
      TORCH_CHECK(offsets.select(0, 0).item<int64_t>() == 0, "embedding_bag(): offsets: the first is not 0");
    const OptionalTensor factor = per_sample_weights && per_sample_weights->defined() ? per_sample_weights : OptionalTensor();
    const bool pads = padding >= 0;
    const Tensor found = indexed::embedding_bag(indices, weight, offsets, mode == kSum ? "sum" : "mean", factor,
                                                include_last_offset, pads ? std::optional<c10::SymInt>(padding) : std::nullopt);
    const c10::SymInt count = indices.sym_size(0), bags = found.sym_size(0);
    const Tensor begins = offsets.slice_symint(0, 0, bags);
    const Tensor ends = include_last_offset ? offsets.slice_symint(0, 1)
                                            : at::cat({offsets.slice_symint(0, 1), offsets.new_zeros({1}).add(count)});
    const Tensor bag =
        at::searchsorted(begins, at::arange(count, begins.options()), /*out_int32=*/begins.scalar_type() == at::kInt,
                         /*right=*/true)
            .sub(1);
    Tensor sizes = ends.sub(begins);
    if (pads) {
      const Tensor before = at::cat({indices.new_zeros({1}, at::kLong), indices.ne(padding).cumsum(0)});
      sizes = before.index_select(0, ends).sub(before.index_select(0, begins)).to(offsets.scalar_type());
    }
    return {found.contiguous(), bag, sizes, sizes.clone()};
  }
};

// The gradient of the table. On a GPU torch's sizes are as many as the offsets, with include_last_offset one more than the
// bags.
struct BagBackward : Refusing {
  static bool takes_gradient(const Tensor& grad, const Tensor& indices, const Tensor& bag, const Tensor& sizes,
                             const c10::SymInt& rows, bool scale_grad_by_freq) {
    return !scale_grad_by_freq && is_pair(grad, grad) && at::isFloatingType(grad.scalar_type()) && grad.dim() == 2 &&
           is_index(indices, grad.device()) && indices.dim() == 1 && is_index(bag, grad.device()) &&
           same(bag.sym_size(0), indices.sym_size(0)) && is_index(sizes, grad.device()) &&
           (same(sizes.sym_size(0), grad.sym_size(0)) || same(sizes.sym_size(0), grad.sym_size(0) + 1)) &&
           TORCH_GUARD_OR_FALSE(rows.sym_gt(0));
  }

  // Entries of the padding are sorted behind all rows, where nobody reads them.
  static Tensor gradient(const Tensor& given, const Tensor& indices, const Tensor& bag, const Tensor& given_sizes,
                         const Tensor& largest, const c10::SymInt& rows, int64_t mode, const OptionalTensor& per_sample_weights,
                         int64_t padding) {
    const Tensor sizes = given_sizes.slice_symint(0, 0, given.sym_size(0));
    if (mode == kMax) {
      const Tensor place = at::where(sizes.gt(0).unsqueeze(1), largest, rows).to(at::kLong);
      const Tensor zeros = at::zeros_symint({rows + 1, given.sym_size(1)}, given.options());
      return indexed::scatter_add(zeros, 0, place, given).slice_symint(0, 0, rows);
    }
    const Tensor grad =
        mode == kSum ? given : apply(Formula::ratio, given, {{}, sizes.unsqueeze(1)}, at::toOpMathType(given.scalar_type()));
    const auto [order, ends] = index_plan_operator().call(at::where(indices.eq(padding), rows, indices), rows + 1);
    const Tensor factor = per_sample_weights && per_sample_weights->defined() ? *per_sample_weights : Tensor();
    return gathered::along(grad, factor, {bag.index_select(0, order), ends.slice_symint(0, 0, rows + 1), order}, {}, 0,
                           given.scalar_type());
  }

  static bool takes(const Tensor& grad, const Tensor& indices, const Tensor&, const Tensor& bag, const Tensor& sizes,
                    const Tensor&, c10::SymInt rows, bool scale_grad_by_freq, int64_t, bool sparse, const OptionalTensor&,
                    int64_t) {
    return !sparse && takes_gradient(grad, indices, bag, sizes, rows, scale_grad_by_freq);
  }
  template <bool traced>
  static Tensor ours(Keys, const Tensor& grad, const Tensor& indices, const Tensor&, const Tensor& bag, const Tensor& sizes,
                     const Tensor& largest, c10::SymInt rows, bool, int64_t mode, bool,
                     const OptionalTensor& per_sample_weights, int64_t padding) {
    return gradient(grad, indices, bag, sizes, largest, rows, mode, per_sample_weights, padding);
  }

  struct Dense : Refusing {
    static bool takes(const Tensor& grad, const Tensor& indices, const Tensor& bag, const Tensor& sizes, const Tensor&,
                      c10::SymInt rows, bool scale_grad_by_freq, int64_t, const OptionalTensor&, int64_t) {
      return takes_gradient(grad, indices, bag, sizes, rows, scale_grad_by_freq);
    }
    template <bool traced>
    static Tensor ours(Keys, const Tensor& grad, const Tensor& indices, const Tensor& bag, const Tensor& sizes,
                       const Tensor& largest, c10::SymInt rows, bool, int64_t mode, const OptionalTensor& per_sample_weights,
                       int64_t padding) {
      return gradient(grad, indices, bag, sizes, largest, rows, mode, per_sample_weights, padding);
    }
  };
};

// The gradient of the weights: dot products of rows of the table and gradients of bags.
struct BagWeightsBackward : Refusing {
  static bool takes(const Tensor& grad, const Tensor& weight, const Tensor& indices, const Tensor&, const Tensor& bag,
                    int64_t mode, int64_t) {
    return mode == kSum && is_pair(grad, weight) && at::isFloatingType(grad.scalar_type()) && grad.dim() == 2 &&
           is_index(indices, grad.device()) && is_index(bag, grad.device()) && same(bag.sym_size(0), indices.sym_size(0));
  }
  template <bool traced>
  static Tensor ours(Keys, const Tensor& grad, const Tensor& weight, const Tensor& indices, const Tensor&, const Tensor& bag,
                     int64_t, int64_t padding) {
    const auto rows = [](const Tensor& table, const Tensor& numbers) {
      return gathered::along(table, {}, {numbers, {}, {}}, {}, 0, table.scalar_type());
    };
    return weighted_sum_operator()
        .call(rows(weight, indices), rows(grad, bag), at::IntArrayRef(1), false, grad.scalar_type())
        .masked_fill(indices.eq(padding), 0);
  }
};

// --- bincount ---------------------------------------------------------------------------------------------------------------

struct Bincount : Refusing {
  static bool takes(const Tensor& self, const OptionalTensor& weights, c10::SymInt) {
    return weights && weights->defined() && at::isIntegralType(self.scalar_type(), /*includeBool=*/false) &&
           is_result(self.scalar_type(), self.device()) && is_plain(self, self.device()) && is_plain(*weights, self.device()) &&
           self.dim() == 1 && weights->dim() == 1 && same(self.sym_size(0), weights->sym_size(0)) && !is_empty(self) &&
           is_result(weights->scalar_type(), self.device()) && !at::isComplexType(weights->scalar_type());
  }
  template <bool traced>
  static Tensor ours(Keys, const Tensor& self, const OptionalTensor& weights, c10::SymInt minlength) {
    return indexed::bincount(self, weights, minlength);
  }
};

}  // namespace

// --- the table ------------------------------------------------------------------------------------------------------------

Functions functions_by_index() {
  return {
      {"index_add",
       [](Table& m) {
         m.impl<Adding<IndexAdd>, GPUREDUCE_TORCH(index_add)>("index_add");
         m.impl_on_device<Adding<IndexAdd>::Out, GPUREDUCE_TORCH(index_add_outf)>("index_add.out");
         m.impl_on_device<Adding<IndexAdd>::InPlace, GPUREDUCE_TORCH(index_add_)>("index_add_");
       }},
      {"scatter_add",
       [](Table& m) {
         m.impl<Adding<ScatterAdd>, GPUREDUCE_TORCH(scatter_add)>("scatter_add");
         m.impl_on_device<Adding<ScatterAdd>::Out, GPUREDUCE_TORCH(scatter_add_outf)>("scatter_add.out");
         m.impl_on_device<Adding<ScatterAdd>::InPlace, GPUREDUCE_TORCH(scatter_add_)>("scatter_add_");
       }},
      {"index_reduce",
       [](Table& m) {
         m.impl<Adding<IndexReduce>, GPUREDUCE_TORCH(index_reduce)>("index_reduce");
         m.impl_on_device<Adding<IndexReduce>::Out, GPUREDUCE_TORCH(index_reduce_outf)>("index_reduce.out");
         m.impl_on_device<Adding<IndexReduce>::InPlace, GPUREDUCE_TORCH(index_reduce_)>("index_reduce_");
       }},
      {"scatter_reduce",
       [](Table& m) {
         m.impl<Adding<ScatterReduce>, GPUREDUCE_TORCH(scatter_reduce)>("scatter_reduce.two");
         m.impl_on_device<Adding<ScatterReduce>::Out, GPUREDUCE_TORCH(scatter_reduce_outf)>("scatter_reduce.two_out");
         m.impl_on_device<Adding<ScatterReduce>::InPlace, GPUREDUCE_TORCH(scatter_reduce_)>("scatter_reduce_.two");
       }},
      {"index_put",
       [](Table& m) {
         m.put_on_device("_index_put_impl_", TORCH_FN(IndexPut::in_place));
         m.put_traced("index_put", IndexPut::functional);
       }},
      {"embedding",
       [](Table& m) { m.impl<Embedding, GPUREDUCE_TORCH(embedding_dense_backward_symint)>("embedding_dense_backward"); }},
      {"embedding_bag",
       [](Table& m) {
         m.impl<EmbeddingBag, GPUREDUCE_TORCH(_embedding_bag)>("_embedding_bag");
         m.impl<EmbeddingBag, GPUREDUCE_TORCH(_embedding_bag_forward_only)>("_embedding_bag_forward_only");
         m.impl<BagBackward, GPUREDUCE_TORCH(_embedding_bag_backward_symint)>("_embedding_bag_backward");
         m.impl<BagBackward::Dense, GPUREDUCE_TORCH(_embedding_bag_dense_backward_symint)>("_embedding_bag_dense_backward");
         m.impl<BagWeightsBackward, GPUREDUCE_TORCH(_embedding_bag_per_sample_weights_backward)>(
             "_embedding_bag_per_sample_weights_backward");
       }},
      // Its size depends on data: what is compiled calls torch's operator, and so the kernel that it has then.
      {"bincount", [](Table& m) { m.impl_on_device<Bincount, GPUREDUCE_TORCH(bincount_symint)>("bincount"); }},
  };
}

}  // namespace gpureduce::replacing
