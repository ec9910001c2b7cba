// argmax and argmin; and max, min and aminmax, which call others.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>

#include "../core/torch/batch.h"
#include "../core/torch/explain.h"
#include "../core/torch/gradient.h"
#include "../core/torch/plumbing.h"
#include "cpu_indices.h"

namespace gpureduce::indices {

namespace {

using at::Tensor;

// Without `out` the call is only checked, with the strides of a new contiguous result.
Reduction make_reduction(const char* name, const Tensor& self, const DimMask& reduce, bool smallest, const Tensor& out,
                         bool keepdim) {
  Reduction r{};
  r.addends = Addends::indices;
  r.accumulator = Accumulator::indexed;
  r.map = smallest ? Map::negative : Map::value;
  r.out = DType::Long;
  r.input = self.const_data_ptr();
  r.in = dtype_of(self.scalar_type(), "an input of dtype", name);
  r.negate = self.is_neg();
  // The second strides count the elements of an output, in logical order.
  InputDims dims(self.dim());
  int64_t step = 1;
  for (int64_t d = self.dim() - 1; d >= 0; --d) {
    dims[d] = {self.size(d), self.stride(d), 0, false, reduce[d] ? step : 0};
    if (reduce[d]) step *= self.size(d);
  }
  complete(r, dims, reduce, out, keepdim, self.device(), smallest ? "argmin: the input has" : "argmax: the input has");
  r.problem.second_larger = false;  // nobody reads a second input
  classify(r);
  return r;
}

template <class Int>
struct Call {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  DimMask reduce;
};

// The operators are named by the operation whose result is an element.
struct Index {
  Which which;

  const char* name() const {
    if (which.exact) return nullptr;
    return which.op == Operation::_amax ? "argmax" : which.op == Operation::_amin ? "argmin" : nullptr;
  }
  static constexpr const char* kArguments = "(Tensor self, int[1]? dim=None, bool keepdim=False";
  static constexpr bool out_has_dtype() { return false; }
  static constexpr bool has_gradient() { return false; }
  static constexpr bool autocasts(c10::DeviceType) { return false; }
  using Function = Tensor(const Tensor&, OptionalDims, bool);

  template <class Int>
  Call<Int> check(const Tensor& self, OptionalDims dim, bool keepdim, const Tensor* out) const {
    const at::ScalarType type = self.scalar_type();
    TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(type), name(), "(): complex numbers have no order: input has dtype ", type);
    Call<Int> call;
    call.dtype = at::kLong;
    call.reduce = reduced_dims(dim, self.dim());
    const auto is_zero = [](const c10::SymInt& size) { return TORCH_GUARD_OR_FALSE(size.sym_eq(0)); };
    if (is_zero(self.sym_numel())) {
      TORCH_CHECK_INDEX(dim && !dim->empty(), name(), "(): Expected reduction dim to be specified for input.numel() == 0.");
      for (const int64_t d : *dim)
        TORCH_CHECK_INDEX(!is_zero(self.sym_size(d)), name(), "(): Expected reduction dim ", at::maybe_wrap_dim(d, self.dim()),
                          " to have non-zero size.");
    }
    if (out) check_out_dtype(*out, call.dtype);
    if (out) check_out_place(*out, self.device());
    dtype_of(type, "an input of dtype", name());
    call.sizes = result_sizes(sizes_of<Int>(self), call.reduce, keepdim);
    return call;
  }

  void refuse(const Call<int64_t>& call, const Tensor& self, OptionalDims, bool keepdim) const {
    make_reduction(name(), self, call.reduce, which.op == Operation::_amin, {}, keepdim);
  }

  void compute(const Call<int64_t>& call, const Tensor& self, OptionalDims, bool keepdim, const Tensor& out,
               const Tuning& tuning) const {
    const Reduction r = make_reduction(name(), self, call.reduce, which.op == Operation::_amin, out, keepdim);
    if (r.problem.outputs == 0) return;
    run_on(self.device(), r, tuning, cpu::run_indices);
  }
};

using Indices = Plumbing<Index>;

// An index has no gradient.
Tensor untracked(Which which, c10::DispatchKeySet keys, const Tensor& self, OptionalDims dim, bool keepdim) {
  const at::AutoDispatchBelowAutograd below;
  return Indices::functional(which).redispatch(keys & c10::after_autograd_keyset, self, dim, keepdim);
}

Tensor index_batched(Which which, const Tensor& self, OptionalDims dim, bool keepdim) {
  return batched_reduction(Index{which}.name(), std::array{self}, dim, keepdim,
                           [&](const std::array<Tensor, 1>& input, OptionalDims dims, bool keeps) {
                             return Indices::functional(which).call(input[0], dims, keeps);
                           });
}

// --- the functions with two results ---------------------------------------------------------------------------------------

// The elements at the indices. torch gathers no float8 and no unsigned integers but uint8, so bits are gathered for them;
// values of float8 that need a gradient are exact in float32.
Tensor elements(const Tensor& self, int64_t dim, const Tensor& index) {
  const at::ScalarType type = self.scalar_type();
  const bool negate = self.is_neg();
  const Tensor given = negate ? at::_neg_view(self) : self;  // so that no copy of the input is made
  Tensor found;
  if (at::isFloat8Type(type) && is_tracked(self)) {
    found = given.to(at::kFloat).gather(dim, index).to(type);
  } else if (at::isFloat8Type(type) || type == at::kUInt16 || type == at::kUInt32 || type == at::kUInt64) {
    const auto bits = self.itemsize() == 1   ? at::kByte
                      : self.itemsize() == 2 ? at::kShort
                      : self.itemsize() == 4 ? at::kInt
                                             : at::kLong;
    found = given.view(bits).gather(dim, index).view(type);
  } else {
    found = given.gather(dim, index);
  }
  return negate ? at::_neg_view(found).clone() : found;
}

// The first largest or smallest elements, and their indices.
TwoTensors extreme(Which which, const Tensor& self, int64_t dim, bool keepdim) {
  const Tensor index = Indices::functional(which).call(self, at::IntArrayRef(dim), true), found = elements(self, dim, index);
  if (keepdim || self.dim() == 0) return {found, index};
  return {found.squeeze(dim), index.squeeze(dim)};
}

TwoTensors smallest_and_largest(const Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  const bool empty = TORCH_GUARD_OR_FALSE(self.sym_numel().sym_eq(0));
  TORCH_CHECK(dim || !empty, "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity.");
  const OptionalDims dims = dim ? OptionalDims(at::IntArrayRef(*dim)) : OptionalDims();
  const auto reduce = [&](Operation op) { return functional(op).call(self, dims, keepdim, std::nullopt); };
  return {reduce(Operation::_amin), reduce(Operation::_amax)};
}

using Written = std::tuple<Tensor&, Tensor&>;

void check_out(const char* function, const Tensor& self, const Tensor& out, at::ScalarType dtype) {
  check_out_dtype(out, dtype);
  check_out_place(out, self.device());
  check_out_gradient(function, self, out);
}

Written write(const TwoTensors& found, Tensor& first, Tensor& second) {
  const auto& [a, b] = found;
  at::native::resize_output_symint(first, a.sym_sizes());
  at::native::resize_output_symint(second, b.sym_sizes());
  const auto is_traced = [](const Tensor& x) { return x.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); };
  if (first.is_same(second) || !(is_traced(first) || is_traced(second))) at::assert_no_overlap(first, second);
  first.copy_(a);
  second.copy_(b);
  return {first, second};
}

Written extreme_out(Which which, const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices) {
  const char* const function = which.op == Operation::_amax ? "max" : "min";
  check_out(function, self, values, self.scalar_type());
  check_out(function, self, indices, at::kLong);
  return write(extreme(which, self, dim, keepdim), values, indices);
}

Written smallest_and_largest_out(const Tensor& self, std::optional<int64_t> dim, bool keepdim, Tensor& min, Tensor& max) {
  for (const Tensor* out : {&min, &max}) check_out("aminmax", self, *out, self.scalar_type());
  return write(smallest_and_largest(self, dim, keepdim), min, max);
}

}  // namespace

}  // namespace gpureduce::indices

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  using namespace gpureduce::indices;
  for (const Which which : {Which(Operation::_amax), Which(Operation::_amin)}) {
    const std::string name = Index{which}.name();
    define_reduction_with_out<Index>(m, which);
    define_tuned<Index>(m, "_" + name, "Tensor", which);
    put(m, Key::Autograd, name, kernel_of(which, &untracked));
    put(m, Key::FuncTorchBatched, name, kernel_of(which, &index_batched));
    const std::string both = name.substr(3), arguments = "(Tensor self, int dim, bool keepdim=False";
    define_composite(m, both + arguments + ") -> (Tensor values, Tensor indices)", kernel_of(which, &extreme));
    define_composite(m, both + ".out" + arguments + ", *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!), Tensor(b!))",
                     kernel_of(which, &extreme_out));
  }
  const std::string arguments = "(Tensor self, *, int? dim=None, bool keepdim=False";
  define_composite(m, "aminmax" + arguments + ") -> (Tensor min, Tensor max)", &smallest_and_largest);
  define_composite(m, "aminmax.out" + arguments + ", Tensor(a!) min, Tensor(b!) max) -> (Tensor(a!), Tensor(b!))",
                   &smallest_and_largest_out);
}
