// Sorts by index, which sums by index are made of. _index_plan gives the entries' positions in a stable sort.
// _index_sort_values gives their values, which saves a gather if an entry is one number. _gather_values puts values into the
// order of a plan.
#include "../core/problem/index.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "index.h"
#endif

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "../core/plan/index.h"
#include "../core/torch/batch.h"
#include "../core/torch/explain.h"
#include "../core/torch/plumbing.h"
#include "cpu.h"

namespace gpureduce {

namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

// Without the leading underscore these are the functions that errors name.
constexpr const char *kPlan = "_index_plan", *kSort = "_index_sort_values", *kGather = "_gather_values";
constexpr const char* spoken(const char* name) { return name + 1; }

// --- checks -----------------------------------------------------------------------------------------------------------------

// The offsets have an element more than there are outputs, and their bytes must be a number of 64 bits.
constexpr int64_t kMostOutputs = int64_t{1} << 59;

void check_size(const char* name, const c10::SymInt& size) {
  TORCH_CHECK(TORCH_GUARD_OR_TRUE(size.sym_ge(0)) && TORCH_GUARD_OR_TRUE(size.sym_le(kMostOutputs)), spoken(name),
              "(): size: expected a number from 0 to 2^59, but got ", size);
}

void check_floats(const char* name, const char* argument, const Tensor& x, const char* other, const Tensor& like) {
  const at::ScalarType type = x.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, spoken(name), argument,
                              ": expected float32, float16 or bfloat16, but got ", type);
  check_vector(spoken(name), argument, x);
  check_device(spoken(name), argument, x, like.device(), other);
}

void check_length(const char* name, const char* argument, const Tensor& x, const char* other, const Tensor& like) {
  TORCH_CHECK(TORCH_GUARD_OR_TRUE(x.sym_size(0).sym_eq(like.sym_size(0))), spoken(name), argument, ": expected ",
              like.sym_size(0), " elements as ", other, " has, but got ", x.sym_size(0));
}

void check_weight(const char* name, const OptionalTensor& weight, const Tensor& values) {
  if (!weight) return;
  check_floats(name, "(): weight", *weight, "values", values);
  check_length(name, "(): weight", *weight, "values", values);
}

void check_plan(const Tensor& index, const c10::SymInt& size) {
  check_integers(spoken(kPlan), "(): index", index);
  check_size(kPlan, size);
}

void check_sort(const Tensor& values, const Tensor& index, const c10::SymInt& size, const OptionalTensor& weight) {
  check_integers(spoken(kSort), "(): index", index);
  check_size(kSort, size);
  check_floats(kSort, "(): values", values, "index", index);
  check_length(kSort, "(): values", values, "index", index);
  check_weight(kSort, weight, values);
}

void check_gather(const Tensor& values, const Tensor& order, const OptionalTensor& weight) {
  check_integers(spoken(kGather), "(): order", order);
  check_floats(kGather, "(): values", values, "order", order);
  check_weight(kGather, weight, values);
}

// Raises the error of an entry that is out of range, unless its position is -1.
void refuse(const char* name, const char* argument, const Index& index, int64_t position) {
  TORCH_CHECK_INDEX(position < 0, spoken(name), "(): ", argument, ": expected each in [0, ", index.size, "), but entry ",
                    position, " is ", index.at(std::max<int64_t>(position, 0)));
}

// --- without data -----------------------------------------------------------------------------------------------------------

// The dtype of positions and offsets.
at::ScalarType position_type(const c10::SymInt& count) {
  return TORCH_GUARD_OR_TRUE(count.sym_lt(int64_t{1} << 31)) ? at::kInt : at::kLong;
}

// New results: what is sorted has the dtype of positions if it has no other.
Pair results_of(const Tensor& index, c10::SymInt size, OptionalDtype sorted = std::nullopt) {
  const auto options = index.options().dtype(position_type(index.sym_size(0)));
  return {at::empty_symint({index.sym_size(0)}, sorted ? options.dtype(*sorted) : options),
          at::empty_symint({std::move(size) + 1}, options)};
}

Pair plan_meta(const Tensor& index, c10::SymInt size) {
  check_plan(index, size);
  return results_of(index, std::move(size));
}

Pair sort_values_meta(const Tensor& values, const Tensor& index, c10::SymInt size, const OptionalTensor& weight) {
  check_sort(values, index, size, weight);
  return results_of(index, std::move(size), at::kFloat);
}

Tensor gather_meta(const Tensor& values, const Tensor& order, const OptionalTensor& weight) {
  check_gather(values, order, weight);
  return at::empty_symint({order.sym_size(0)}, values.options().dtype(at::kFloat));
}

// --- backends ---------------------------------------------------------------------------------------------------------------

Index index_of(const Tensor& index, int64_t size) {
  return {index.const_data_ptr(), index.scalar_type() == at::kLong, index.stride(0), index.size(0), size};
}

Floats floats_of(const Tensor& x) { return {x.const_data_ptr(), dtype_of(x.scalar_type(), "values of dtype"), x.stride(0)}; }

IndexValues values_of(const Tensor& values, const OptionalTensor& weight) {
  return {floats_of(values), weight ? floats_of(*weight) : Floats{}};
}

#ifdef GPUREDUCE_WITH_CUDA
// Returns the tensor that has the result: `sorted`, or another one like it.
Tensor sort_on_gpu(const IndexSort& sort, const Tensor& sorted) {
  const c10::cuda::CUDAGuard guard(sorted.device());
  const auto empty = [&](int64_t count, at::ScalarType type) {
    return Tensor(at::detail::empty_cuda({count}, type, sorted.device(), std::nullopt));
  };
  size_t bytes = 0;
  C10_CUDA_CHECK(cuda::workspace_of(sort.index, bytes));
  const Tensor workspace = empty(static_cast<int64_t>(bytes), at::kByte), spare = empty(sorted.size(0), sorted.scalar_type());
  bool in_spare = false;
  C10_CUDA_CHECK(cuda::sort_by_index(sort, spare.mutable_data_ptr(), workspace.mutable_data_ptr(), bytes, in_spare,
                                     c10::cuda::getCurrentCUDAStream()));
  return in_spare ? spare : sorted;
}

Pair plan(const Tensor& index, int64_t size);

// A plan of outputs or entries that 32 bits cannot count. Hardly anybody needs it, so that torch's operators must do.
Pair large_plan(const Tensor& index, int64_t size) {
  const int64_t count = index.size(0);
  if (count < int64_t{1} << 31) {
    at::_assert_async(index.ge(0).logical_and_(index.lt(size)).all(), "index: each must be in [0, size)");
    const auto [keys, order] = at::sort(index.to(at::kLong), /*stable=*/true, /*dim=*/0, /*descending=*/false);
    const Tensor offsets = at::empty({size + 1}, index.options().dtype(at::kInt));
    constexpr int64_t kAtOnce = int64_t{1} << 30;  // outputs: torch's functions do not take 2^32
    for (int64_t first = 0; first <= size; first += kAtOnce) {
      const int64_t here = std::min(kAtOnce, size + 1 - first);
      offsets.narrow(0, first, here)
          .copy_(at::searchsorted(keys, at::arange(first, first + here, keys.options()), /*out_int32=*/true));
    }
    return {order.to(at::kInt), offsets};
  }
  // torch's sort does not take so many: plans of parts. An output has its entries of the first part first, and so on.
  constexpr int64_t kPart = int64_t{1} << 29;
  std::vector<Pair> parts;
  Tensor offsets = at::zeros({size + 1}, index.options().dtype(at::kLong));
  for (int64_t begin = 0; begin < count; begin += kPart) {
    parts.push_back(plan(index.narrow(0, begin, std::min(kPart, count - begin)), size));
    offsets.add_(std::get<1>(parts.back()));
  }
  const Tensor order = at::empty({count}, offsets.options());
  Tensor places = offsets.narrow(0, 0, size);  // where the next part's entries of each output go
  for (size_t i = 0; i < parts.size(); ++i) {
    auto& [own, ends] = parts[i];
    const Tensor lengths = ends.diff().to(at::kLong);
    const Tensor shift = places.sub(ends.narrow(0, 0, size));
    const Tensor to = at::repeat_interleave(shift, lengths, /*dim=*/0, /*output_size=*/own.size(0))
                          .add_(at::arange(own.size(0), offsets.options()));
    order.scatter_(0, to, own.to(at::kLong).add_(static_cast<int64_t>(i) * kPart));
    places = places.add(lengths);
    own = Tensor();
  }
  return {order, offsets};
}
#endif

// Sorts what `values` has, or positions, into new `results`.
Pair sorted_into(Pair results, const char* name, const Index& index, const IndexValues& values) {
  auto& [sorted, offsets] = results;
  if (index.count == 0) {
    offsets.zero_();
    return results;
  }
  TORCH_CHECK_INDEX(index.size > 0, spoken(name), "(): index: expected no entries, as size is 0, but got ", index.count);
  Explanation* const e = explanation();
  if (e && e->gpu(sorted.device())) e->say(cuda::plan_index(index).str(index));
  else if (e) e->say("cpu: " + std::to_string(index.count) + " entries sorted by index");
  if (e && !sorted.is_cpu()) return results;
  const Unexplained computed;  // on the CPU, since the work behind it is cut by it
  const IndexSort sort{index, values, offsets.scalar_type() == at::kLong, sorted.mutable_data_ptr(),
                       offsets.mutable_data_ptr()};
#ifdef GPUREDUCE_WITH_CUDA
  if (sorted.is_cuda()) {
    sorted = sort_on_gpu(sort, sorted);
    return results;
  }
#endif
  refuse(name, "index", index, cpu::sort_by_index(sort));
  return results;
}

Pair plan(const Tensor& index, int64_t size) {
  check_plan(index, size);
  const Index entries = index_of(index, size);
#ifdef GPUREDUCE_WITH_CUDA
  if (index.is_cuda() && !cuda::can_sort(entries)) return large_plan(index, size);
#endif
  return sorted_into(results_of(index, size), kPlan, entries, {});
}

Tensor gather(const Tensor& values, const Tensor& order, const OptionalTensor& weight) {
  const Tensor out = gather_meta(values, order, weight);
  const Index entries = index_of(order, values.size(0));
  if (entries.count == 0) return out;
  TORCH_CHECK_INDEX(entries.size > 0, spoken(kGather), "(): order: expected no entries, as there are no values, but got ",
                    entries.count);
  if (Explanation* const e = explanation()) {
    e->tell(
        order.device(), "gather of " + std::to_string(entries.count) + " values", "task",
        [&](const Device&) {
          return "kernel gather_values: block: " + std::to_string(cuda::kIndexThreads) + " threads; grid " +
                 std::to_string(cuda::plan_index(entries).entries.x);
        },
        [&] { cpu::gather_by_order(entries, values_of(values, weight), out.mutable_data_ptr<float>()); });
    return out;
  }
#ifdef GPUREDUCE_WITH_CUDA
  if (order.is_cuda()) {
    const c10::cuda::CUDAGuard guard(order.device());
    C10_CUDA_CHECK(cuda::gather_by_order(entries, values_of(values, weight), out.mutable_data_ptr<float>(),
                                         c10::cuda::getCurrentCUDAStream()));
    return out;
  }
#endif
  refuse(kGather, "order", entries, cpu::gather_by_order(entries, values_of(values, weight), out.mutable_data_ptr<float>()));
  return out;
}

Pair sort_values(const Tensor& values, const Tensor& index, int64_t size, const OptionalTensor& weight) {
  check_sort(values, index, size, weight);
  const Index entries = index_of(index, size);
#ifdef GPUREDUCE_WITH_CUDA
  if (index.is_cuda() && !cuda::can_sort(entries)) {
    const auto [order, offsets] = large_plan(index, size);
    return {gather(values, order, weight), offsets};
  }
#endif
  return sorted_into(results_of(index, size, at::kFloat), kSort, entries, values_of(values, weight));
}

// --- vmap -------------------------------------------------------------------------------------------------------------------

// A call per element of a batch: `call` takes the inputs of one.
template <size_t n, class Call>
auto batched(const char* name, const std::array<Tensor, n>& inputs, Call call) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(name);
  const Unwrapped<n> batch(inputs, level);
  if (!batch.first) return call(batch.inputs);
  return call_per_element(std::string(spoken(name)) + "()", batch.size(), level, [&](int64_t i) { return call(batch.at(i)); });
}

Pair plan_batched(const Tensor& index, c10::SymInt size) {
  return batched<1>(kPlan, {index}, [&](const auto& own) { return index_plan_operator().call(own[0], size); });
}

Pair sort_values_batched(const Tensor& values, const Tensor& index, c10::SymInt size, const OptionalTensor& weight) {
  static const auto below = find<Pair(const Tensor&, const Tensor&, c10::SymInt, const OptionalTensor&)>(kSort);
  return batched<3>(kSort, {values, index, tensor_of(weight)},
                    [&](const auto& own) { return below.call(own[0], own[1], size, optional(own[2])); });
}

Tensor gather_batched(const Tensor& values, const Tensor& order, const OptionalTensor& weight) {
  static const auto below = find<Tensor(const Tensor&, const Tensor&, const OptionalTensor&)>(kGather);
  return batched<3>(kGather, {values, order, tensor_of(weight)},
                    [&](const auto& own) { return below.call(own[0], own[1], optional(own[2])); });
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  define_operator<plan, plan_meta, nullptr, plan_batched>(
      m, "_index_plan(Tensor index, SymInt size) -> (Tensor order, Tensor offsets)");
  define_operator<sort_values, sort_values_meta, nullptr, sort_values_batched>(
      m,
      "_index_sort_values(Tensor values, Tensor index, SymInt size, Tensor? weight=None) -> (Tensor sorted, Tensor offsets)");
  define_operator<gather, gather_meta, nullptr, gather_batched>(
      m, "_gather_values(Tensor values, Tensor order, Tensor? weight=None) -> Tensor");
  refuse_layouts(m, kPlan);
  // The sums that call these have gradients of their own.
  for (const char* name : {kSort, kGather}) put(m, Key::Autograd, name, torch::autograd::autogradNotImplementedFallback());
}
