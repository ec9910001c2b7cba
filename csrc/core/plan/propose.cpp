#include "propose.h"

#include <algorithm>
#include <stdexcept>

namespace gpureduce {

namespace {

// The number of different elements of an input, whose stride is step(dim): an expanded dim is read once.
template <class Step>
int64_t distinct(const Problem& p, Step step) {
  int64_t elements = 1;
  for (const KeptDim& d : p.kept) elements *= step(d) ? d.size : 1;
  for (const ReducedDim& d : p.reduced) elements *= step(d) ? d.size : 1;
  return elements;
}

constexpr auto kFirst = [](const auto& d) { return d.stride; };
constexpr auto kSecond = [](const auto& d) { return d.second; };

int64_t bytes_read(const Reduction& r) {
  const int64_t bytes = distinct(r.problem, kFirst) * info(r.in).size;
  return r.addends == Addends::products ? bytes + distinct(r.problem, kSecond) * info(r.second_dtype).size : bytes;
}

// True if all vectors along the fastest dim are aligned in an input's memory.
template <class Step>
bool is_aligned(const Problem& p, bool by_columns, int vector, const void* address, DType dtype, Step step) {
  if (reinterpret_cast<uintptr_t>(address) % (vector * info(dtype).size) != 0) return false;
  const size_t skip_kept = by_columns, skip_reduced = !by_columns;
  for (size_t d = 0; d + skip_kept < p.kept.size(); ++d)
    if (step(p.kept[d]) % vector != 0) return false;
  for (size_t d = 0; d + skip_reduced < p.reduced.size(); ++d)
    if (step(p.reduced[d]) % vector != 0) return false;
  return true;
}

// Elements per load: a full vector if the fastest dim is contiguous and every vector is aligned, otherwise 1. A second input
// may also be broadcast along that dim.
int vector_width(const Request& q) {
  const Problem& p = q.p;
  const int vector = std::max(1, kGranule / q.element_bytes);
  const KeptDim fast = q.by_columns ? (p.kept.empty() ? KeptDim{} : p.kept.back())
                                    : KeptDim{p.reduced.back().size, p.reduced.back().stride, 0, p.reduced.back().second};
  if (fast.stride != 1 || !is_aligned(p, q.by_columns, vector, q.r.input, q.r.in, kFirst)) return 1;
  if (q.r.addends == Addends::products && fast.second != 0)
    if (fast.second != 1 || !is_aligned(p, q.by_columns, vector, q.r.second, q.r.second_dtype, kSecond)) return 1;
  if (q.r.addends == Addends::indices && fast.second > 1) return 1;
  const bool whole = q.by_columns || p.reduced.size() > 1;  // vectors must not cross the dim's end
  return whole && fast.size % vector != 0 ? 1 : vector;
}

// Bytes of an element as kernels hold it: the size of its source's Element (cuda/load/source.cuh).
int element_bytes_of(const Reduction& r) {
  if (r.engine == Engine::converted && r.addends != Addends::values) return kGranule;
  if (r.engine == Engine::converted)
    return with_accumulator(r.accumulator, [](auto acc) { return converted_bytes<decltype(acc)>; });
  const int size = info(r.in).size;
  switch (r.addends) {
    case Addends::values: break;
    case Addends::products: return 2 * std::max(size, info(r.second_dtype).size);
    case Addends::deviations: return size > 4 ? 8 : 4;
    case Addends::exponents: break;
    case Addends::indices: return std::max(size, 4);
  }
  return size;
}

// The least general walk that finds the elements of both inputs.
Walk walk_of(const Problem& p) {
  if (p.reduced.size() > 1) return Walk::nested;
  const bool dense = p.reduced.empty() || (p.reduced[0].stride == 1 && (p.reduced[0].second == 0 || p.reduced[0].second == 1));
  return dense ? Walk::dense : Walk::linear;
}

// How kernels read contiguous but misaligned rows or columns a vector at a time; `walk` if they do not.
Walk odd_walk(const Request& q) {
  if (!q.typed || q.r.addends != Addends::values || q.vector > 1 || q.p.reduced.size() != 1) return q.walk;
  const int64_t stride = q.p.reduced[0].stride;
  const bool long_rows = stride == 1 && q.p.length > kLanes;
  if (!q.by_columns) return shifts(q.size) && long_rows ? Walk::shifted : q.walk;
  if (q.p.kept.empty() || q.p.kept.back().stride != 1 || q.p.kept.back().size == 1 || q.p.length <= kLoads) return q.walk;
  if (spreads(q.size)) return Walk::spread;
  // With a short stride, vectors of several rows may cross the input's bounds.
  const bool reaches = stride * q.size < kGranule, short_columns = q.p.length <= 2 * kLanes;
  return shifts(q.size) && !reaches && !(short_columns && shifted_column_elements(q.size) > 1) ? Walk::shifted : q.walk;
}

// The blocks of a plan: one per tile, or perhaps fewer in kernels whose blocks take tile after tile.
Grid grid_of(const Plan& plan, const Device& device, int most_blocks) {
  const Tiling& t = plan.tiling;
  int64_t most = most_blocks ? most_blocks : kMaxGrid;
  const auto take = [&](int64_t tiles, int64_t limit) {
    const int64_t blocks = std::min({tiles, limit, most});
    most = blocks < tiles ? 1 : most / blocks;
    return static_cast<uint32_t>(blocks);
  };
  if (plan.is<DensePlan>() || plan.is<FlatPlan>()) {
    if (t.splits == 1) return {t.column_tiles, static_cast<uint32_t>(t.batches), 1};
    return {t.splits, static_cast<uint32_t>(std::min<int64_t>(t.outputs, kMaxDenseDepth)),
            static_cast<uint32_t>(ceil_div(t.outputs, kMaxDenseDepth)), static_cast<uint32_t>(plan.cluster)};
  }
  if (plan.is<PanelsPlan>()) return {t.column_tiles, t.splits, static_cast<uint32_t>(t.batches)};
  if (plan.is<RingPlan>()) return {take(ceil_div(t.tiles, plan.warps), int64_t{kRingBlocks} * device.multiprocessors)};
  Grid grid;
  grid.x = take(t.column_tiles, kMaxGrid);
  grid.y = take(t.splits, kMaxGridDepth);
  grid.z = take(t.batches, kMaxGridDepth);
  return grid;
}

// True if the input is too large to be of use in the L2 later on, but what is written is not. Then the input's lines are
// evicted before results, partial sums and the code of kernels.
bool is_streamed(const Request& q) {
  const int64_t share = q.device.l2_bytes / 4;
  return bytes_read(q.r) > share && q.p.outputs * q.written_bytes <= share;
}

}  // namespace

bool fastest_dim_is_kept(const Problem& p) {
  if (p.reduced.empty()) return true;
  if (p.kept.empty() || p.kept.back().stride == 0) return false;
  return p.reduced.back().stride == 0 || p.kept.back().stride < p.reduced.back().stride;
}

int64_t power_of_two_above(int64_t x) { return int64_t{1} << log2_up(x); }

int leaf_elements(int64_t length) {
  return length <= kLanes ? 1 : length <= 2 * kLanes ? 2 : length <= 4 * kLanes ? 4 : kDepth;
}

Request::Request(const Reduction& r, const Device& device, bool by_columns)
    : r(r), device(device), p(r.problem), by_columns(by_columns) {
  size = info(r.in).size;
  if (r.addends == Addends::products) size = std::max(size, info(r.second_dtype).size);
  direct = r.path != ResultPath::joined;
  typed = r.engine != Engine::converted;
  element_bytes = element_bytes_of(r);
  order_free = r.accumulator == Accumulator::i64;
  const bool values = r.addends == Addends::values;
  const bool small = (order_free && values && ((size <= 2 && !info(r.in).is_rare()) || r.map == Map::nonzero)) ||
                     (r.accumulator == Accumulator::largest_i64 && size <= 4);
  lane_bytes = typed && small ? 4 : typed && r.addends == Addends::indices ? 8 : size_of(r.accumulator);
  variants = variants_of({r.engine, element_bytes, values});
  written_bytes = direct ? info(r.out).size : size_of(r.accumulator);
  walk = walk_of(p);
  vector = typed ? vector_width(*this) : 1;
  odd = odd_walk(*this);
  if (odd != walk && !variant(by_columns ? Kernel::panels : Kernel::dense, odd, odd_vector())) odd = walk;
  leaves = leaf_count(p.length);
  bytes = bytes_read(r) + p.outputs * info(r.out).size;
  streams = is_streamed(*this);
}

void Proposals::add(const Proposal& proposal) {
  if (!proposal.variant) return;
  const Request& q = request;
  const int64_t outputs = q.p.outputs, splits = ceil_div(q.leaves, proposal.tile_leaves);
  const int64_t column_tiles = ceil_div(proposal.columns, proposal.tile_outputs);
  if (splits > kMaxGrid || column_tiles > UINT32_MAX) return;
  Plan plan{};
  plan.shape = proposal.shape;
  plan.variant = *proposal.variant;
  plan.walk = proposal.walk;
  plan.by_columns = q.by_columns;
  plan.vector = proposal.vector;
  plan.warps = proposal.warps;
  const int most = tuning.cluster ? tuning.cluster : kMaxCluster;
  plan.cluster = proposal.clusters && q.device.clusters && q.direct && splits <= most ? static_cast<int>(splits) : 1;
  plan.streams = q.streams;
  plan.early = q.device.early;
  plan.bytes = q.bytes;
  Tiling& t = plan.tiling;
  t.outputs = outputs;
  t.leaves = q.leaves;
  t.columns = proposal.columns;
  t.column_tiles = static_cast<uint32_t>(column_tiles);
  t.splits = static_cast<uint32_t>(splits);
  t.tile_outputs = static_cast<int32_t>(proposal.tile_outputs);
  t.tile_leaves = static_cast<int32_t>(proposal.tile_leaves);
  t.batches = ceil_div(outputs, t.columns);
  t.tiles = column_tiles * splits * t.batches;
  t.partial_output_stride = proposal.by_column || splits == 1 ? 1 : splits;
  t.partial_split_stride = proposal.by_column ? outputs : 1;
  plan.grid = grid_of(plan, q.device, tuning.grid);
  // There is at least one pass of the join if only the join rounds to the result's dtype.
  for (int64_t count = splits / plan.cluster; count > 1 || (plan.joins.empty() && !q.direct);
       count = plan.joins.back().results()) {
    Join join{};
    join.count = count;
    join.threads = static_cast<int>(std::min<int64_t>(power_of_two_above(ceil_div(count, kJoinRun)), kMaxJoin / kJoinRun));
    join.fan = join.threads * kJoinRun;
    plan.workspace_bytes += count * outputs * size_of(q.r.accumulator);
    plan.joins.push_back(join);
  }
  plans.push_back(plan);
}

InputSpan input_span(const Reduction& r) {
  int64_t last = 0;
  for (const KeptDim& d : r.problem.kept) last += (d.size - 1) * d.stride;
  for (const ReducedDim& d : r.problem.reduced) last += (d.size - 1) * d.stride;
  const char* begin = static_cast<const char*>(r.input);
  return {begin, begin + (last + 1) * info(r.in).size};
}

}  // namespace gpureduce
