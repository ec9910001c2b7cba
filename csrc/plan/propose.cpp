#include "propose.h"

#include <algorithm>
#include <stdexcept>

namespace gpureduce {

namespace {

int64_t bytes_moved(const Problem& p, int64_t in_size, int64_t out_size) {
  int64_t elements = 1;  // an expanded dim is read once
  for (const KeptDim& d : p.kept) elements *= d.stride ? d.size : 1;
  for (const ReducedDim& d : p.reduced) elements *= d.stride ? d.size : 1;
  return elements * in_size + p.outputs * out_size;
}

// Elements a load may take: 1, or a full vector where the fastest dim is dense and every place a vector may start is aligned.
int vector_width(const Problem& p, bool by_columns, int size, const void* address) {
  const int vector = std::max(1, kGranule / size);
  if (reinterpret_cast<uintptr_t>(address) % (vector * size) != 0) return 1;
  const int64_t stride = by_columns ? (p.kept.empty() ? 0 : p.kept.back().stride) : p.reduced.back().stride;
  if (stride != 1) return 1;
  const size_t skip_kept = by_columns, skip_reduced = !by_columns;
  for (size_t d = 0; d + skip_kept < p.kept.size(); ++d)
    if (p.kept[d].stride % vector != 0) return 1;
  for (size_t d = 0; d + skip_reduced < p.reduced.size(); ++d)
    if (p.reduced[d].stride % vector != 0) return 1;
  const bool whole = by_columns || p.reduced.size() > 1;  // vectors must not reach over the end of the dim
  const int64_t last = by_columns ? p.kept.back().size : p.reduced.back().size;
  return whole && last % vector != 0 ? 1 : vector;
}

// How rows or columns that are dense, but not at aligned addresses, are read a vector's a thread nevertheless; or else `walk`.
Walk odd_walk(const Request& q) {
  if (!q.typed || q.vector > 1 || q.p.reduced.size() != 1) return q.walk;
  const int64_t stride = q.p.reduced[0].stride;
  const bool long_rows = stride == 1 && q.p.length > kLanes;
  if (!q.by_columns) return shifts(q.size) && long_rows ? Walk::shifted : q.walk;
  if (q.p.kept.empty() || q.p.kept.back().stride != 1 || q.p.kept.back().size == 1 || q.p.length <= kLoads) return q.walk;
  if (spreads(q.size)) return Walk::spread;
  // Vectors of several rows may reach out of the input.
  const bool reaches = stride * q.size < kGranule, few = q.p.length <= 2 * kLanes;
  return shifts(q.size) && !reaches && !(few && shifted_column_elements(q.size) > 1) ? Walk::shifted : q.walk;
}

// The blocks of a plan: a tile each, or where they take tile after tile, as tiles are numbered, perhaps fewer.
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

// Whether the input is too large to be of use in the L2 later on, so that its lines may go before results, partial sums and the
// code of kernels; but what is written is not.
bool is_streamed(const Request& q) {
  const int64_t share = q.device.l2_bytes / 4;
  return bytes_moved(q.p, q.size, 0) > share && q.p.outputs * q.written_bytes <= share;
}

}  // namespace

bool columnwise(const Problem& p) {
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
  direct = r.path != ResultPath::joined;
  typed = r.engine != Engine::converted;
  element_bytes = typed ? size : with_accumulator(r.accumulator, [](auto acc) { return converted_bytes<decltype(acc)>; });
  order_free = r.accumulator == Accumulator::i64;
  const bool small = (order_free && ((size <= 2 && !info(r.in).is_rare()) || r.map == Map::nonzero)) ||
                     (r.accumulator == Accumulator::largest_i64 && size <= 4);
  lane_bytes = typed && small ? 4 : size_of(r.accumulator);
  variants = variants_of({r.engine, element_bytes, outweighs_loads(r.map)});
  written_bytes = direct ? info(r.out).size : size_of(r.accumulator);
  walk = p.reduced.size() > 1 ? Walk::nested : p.reduced.empty() || p.reduced[0].stride == 1 ? Walk::dense : Walk::linear;
  vector = typed ? vector_width(p, by_columns, size, r.input) : 1;
  odd = odd_walk(*this);
  if (odd != walk && !variant(by_columns ? Kernel::panels : Kernel::dense, odd, odd_vector())) odd = walk;
  leaves = leaf_count(p.length);
  bytes = bytes_moved(p, size, info(r.out).size);
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
  // One pass of the join at least where only it rounds to the result's dtype.
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
