#include "plan.h"

#include <algorithm>

namespace gpureduce::cuda {

namespace {

using weighted::Dim;
using weighted::Input;
using weighted::Problem;
using weighted::Reduction;

int64_t stride_of(const Dim& dim, bool of_self) { return of_self ? dim.self : dim.weight; }

// The dim along which a thread takes neighbours, if there is one.
const Dim* fastest(const Problem& p, bool columns) {
  const DimList<Dim>& dims = columns ? p.kept : p.reduced;
  return dims.empty() ? nullptr : &dims.back();
}

// Whether all vectors along the fastest dim are aligned in an input's memory, or are one element many times.
bool fits(const Problem& p, const Input& input, bool of_self, bool columns, int vector) {
  const Dim* const fast = fastest(p, columns);
  if (stride_of(*fast, of_self) == 0) return true;
  if (stride_of(*fast, of_self) != 1) return false;
  if (reinterpret_cast<uintptr_t>(input.data) % (vector * info(input.dtype).size) != 0) return false;
  for (const DimList<Dim>* dims : {&p.kept, &p.reduced})
    for (const Dim& d : *dims)
      if (&d != fast && stride_of(d, of_self) % vector != 0) return false;
  return true;
}

int vector_of(const Reduction& r, bool columns, int size) {
  const Problem& p = r.problem;
  const Dim* const fast = fastest(p, columns);
  if (!fast || (fast->self == 0 && fast->weight == 0)) return 1;
  const bool nested = p.reduced.size() > 1;
  const int most = columns ? most_columns(kGranule / size, size_of(r.accumulator)) : kGranule / size;
  for (int vector = most; vector >= std::max(2, kGranule / (2 * size)); vector /= 2) {
    // Halves have two sizes of vectors, but one in nested dims.
    if (vector < most && (size > 2 || nested)) break;
    if (!columns && nested && p.length <= kLanes) break;
    // Long rows alone may end in a part of a vector.
    const bool whole = fast->size % vector == 0 || (!columns && !nested && p.length > kLanes);
    if (whole && fits(p, r.self, true, columns, vector) && fits(p, r.weight, false, columns, vector)) return vector;
  }
  return 1;
}

void plan_columns(const Reduction& r, int64_t enough, WeightedPlan& plan) {
  const Problem& p = r.problem;
  // Those of several rows, where a block has threads for more than one has: no vector reaches from a row to the next.
  plan.columns = p.kept.back().size < int64_t{kWeightedThreads} * plan.vector ? p.outputs : p.kept.back().size;
  const int64_t leaves = leaf_count(p.length), groups = ceil_div(plan.columns, plan.vector);
  const int unit = column_unit(p.length <= kLanes, size_of(r.accumulator));
  const int log_threads = log2_up(kWeightedThreads), log_groups = log2_up(groups);
  const int log_slots = std::min(log2_up(ceil_div(leaves, unit)), log_threads - std::min(5, log_groups));
  plan.log_width = std::min(log_groups, log_threads - log_slots);
  plan.threads = std::max(kWarp, 1 << (plan.log_width + log_slots));
  const int64_t side = int64_t{plan.vector} << plan.log_width;
  const int most = unit * static_cast<int>(kWeightedSumsBytes / (side * size_of(r.accumulator)));
  plan.column_tiles = ceil_div(plan.columns, side);
  const int64_t others = plan.column_tiles * (p.outputs / plan.columns);
  plan.tile_leaves = std::min(most, unit << log_slots);
  while (plan.tile_leaves < leaves && 2 * plan.tile_leaves <= most && others * ceil_div(leaves, plan.tile_leaves) > enough)
    plan.tile_leaves *= 2;
  plan.splits = ceil_div(leaves, plan.tile_leaves);
  plan.blocks = others * plan.splits;
}

void plan_rows(const Reduction& r, int64_t enough, int size, WeightedPlan& plan) {
  const Problem& p = r.problem;
  const bool finishes = r.accumulator == Accumulator::c128;  // with a lot of code, for which a warp is to have many rows
  const int64_t vectors = ceil_div(p.length, plan.vector);
  if (p.length <= kLanes && vectors <= kWarp * kMostWeightedGroups) {
    plan.kernel = WeightedKernel::short_rows;
    plan.groups = vectors <= kWarp ? 1 : vectors <= 4 * kWarp ? 4 : kMostWeightedGroups;
    plan.log_width = std::min(5, log2_up(vectors));
    plan.threads = kWeightedThreads;
    const int rows = weighted_rows_at_once(plan.groups) * (kWarp >> plan.log_width);  // of a warp
    const int64_t tasks = ceil_div(p.outputs, rows * (plan.threads / kWarp));
    while (2 * plan.run * rows <= kWarp && tasks / plan.run > enough) plan.run *= 2;
    plan.blocks = ceil_div(tasks, plan.run);
    return;
  }
  const bool dense = plan.vector >= 4 && p.reduced.size() == 1;
  plan.elements = dense && p.length <= kFewElements * kLanes ? kFewElements : kDepth;
  if (plan.elements < kDepth) {
    plan.threads = kWeightedThreads / 2;
    const int64_t tasks = ceil_div(p.outputs, plan.threads / kWarp);
    while (finishes && plan.run < kWarp && tasks / (2 * plan.run) > enough) plan.run *= 2;
    plan.blocks = ceil_div(tasks, plan.run);
    return;
  }
  const int64_t units = ceil_div(leaf_count(p.length), kWarp * plan.vector * weighted_groups(plan.vector, size, kDepth));
  int warps = 1 << std::min(log2_up(units), log2_up(kWeightedThreads / kWarp));
  // Of many rows that a block takes at once, a warp takes two units: fewer warps start then, and end.
  if (p.outputs > enough && units > 1 && units <= warps) warps /= 2, plan.run = 2;
  plan.threads = warps * kWarp;
  while (plan.run < kMostWeightedRun && plan.run * warps < units &&
         p.outputs * ceil_div(units, int64_t{plan.run} * warps) > enough)
    plan.run *= 2;
  plan.splits = ceil_div(units, int64_t{plan.run} * warps);
  plan.blocks = p.outputs * plan.splits;
}

}  // namespace

bool takes_weighted(DType first, DType second, Accumulator accumulator) {
  // Of moments (variance.h), whose inputs are the same.
  if (accumulator == Accumulator::c128) return info(first).kind == Kind::floating && info(first).size > 1;
  switch (first) {
    case DType::Float:
      return accumulator == Accumulator::f32 &&
             (second == DType::Float || second == DType::Half || second == DType::BFloat16 || second == DType::Bool);
    case DType::Half:
    case DType::BFloat16: return accumulator == Accumulator::f32 && (second == first || second == DType::Bool);
    case DType::Double: return accumulator == Accumulator::f64 && second == DType::Double;
    case DType::Int: return accumulator == Accumulator::i64 && second == DType::Int;
    default: return false;
  }
}

WeightedPlan plan_weighted(const Reduction& r, const Device& device) {
  const Problem& p = r.problem;
  WeightedPlan plan = {};
  const bool columns = weighted::has_columns(p) || (p.length <= kFewOfRow && !p.kept.empty());
  const Dim* const fast = fastest(p, columns);
  const bool as_given = takes_weighted(r.self.dtype, r.weight.dtype, r.accumulator);
  const bool moments = r.accumulator == Accumulator::c128, direct = moments || r.path() != ResultPath::joined;
  const bool changed = !moments && takes_weighted(r.weight.dtype, r.self.dtype, r.accumulator);
  plan.typed = (as_given || changed) && !r.nonzero && !r.self.negate && !r.weight.negate && fits_fast_nest(p.kept, p.outputs) &&
               fits_fast_nest(p.reduced, p.length);
  // A kernel's second input may be the same for all of a vector's neighbours.
  plan.swapped = plan.typed && changed && (!as_given || (fast && fast->self == 0));
  const int size = plan.typed ? std::max(info(r.self.dtype).size, info(r.weight.dtype).size) : kGranule;
  plan.vector = plan.typed ? vector_of(r, columns, size) : 1;
  if (plan.vector > 1) {
    if ((plan.swapped ? fast->weight : fast->self) == 0) plan.vector = 1;
    else plan.second_same = (plan.swapped ? fast->self : fast->weight) == 0;
  }
  plan.kernel = columns ? WeightedKernel::columns : WeightedKernel::rows;
  plan.groups = plan.run = plan.tile_leaves = 1;
  plan.columns = plan.column_tiles = plan.splits = 1;
  const int64_t enough = int64_t{kWeightedTilesOfEach} * device.multiprocessors;
  if (columns) plan_columns(r, enough, plan);
  else plan_rows(r, enough, size, plan);
  plan.joins = plan.splits > 1 || !direct;
  plan.join_threads = 1 << std::min(10, log2_up(ceil_div(plan.splits, kJoinRun)));
  return plan;
}

}  // namespace gpureduce::cuda
