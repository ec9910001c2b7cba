#include "choose.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "choice.h"

namespace gpureduce {

namespace {

// Resident warps per multiprocessor of a plan's kernel, as its launch bounds limit registers.
struct Resident {
  const Plan& plan;
  int words;  // of a vector of lane sums
  int operator()(const DensePlan&) const { return dense_warps(plan.walk, 4 * words) * dense_blocks(plan.walk, 4 * words); }
  int operator()(const PanelsPlan&) const { return panel_wave(words, plan.walk); }
  template <class Other>
  int operator()(const Other&) const {
    return 32;
  }
};

// Features of single kernels: elements of a leaf, or stages, that a thread has in flight; how many times it does so; threads
// side by side; bytes of a stage.
struct ShapeFeatures { int elements, batches, width, stage; };
struct ShapeFeaturesOf {
  ShapeFeatures operator()(const DensePlan& p) const { return {p.elements, 1, kWarp, 1}; }
  ShapeFeatures operator()(const FlatPlan& p) const { return {1, p.groups, p.width, 1}; }
  ShapeFeatures operator()(const RingPlan& p) const { return {p.stages, 1, 1, p.stage_bytes}; }
  ShapeFeatures operator()(const ThinPlan& p) const { return {p.elements, p.runs, 1, 1}; }
  ShapeFeatures operator()(const ColumnsPlan& p) const { return {p.elements, p.batches, p.width, 1}; }
  ShapeFeatures operator()(const PanelsPlan& p) const { return {p.elements, 1, p.width, 1}; }
  ShapeFeatures operator()(const ExpandedPlan&) const { return {1, 1, 1, 1}; }
};

struct Facts {
  const Plan& plan;
  const Request& q;
  const Tiling& t = plan.tiling;
  ShapeFeatures shape = std::visit(ShapeFeaturesOf{}, plan.shape);
  float processors = float(q.device.multiprocessors), length = float(q.p.length), outputs = float(q.p.outputs);
  float written = outputs * float(q.written_bytes);
  float read = float(q.bytes) - outputs * float(info(q.r.out).size);
  float tile_leaves = float(std::min<int64_t>(t.tile_leaves, t.leaves)),
        tile_outputs = float(std::min<int64_t>(t.tile_outputs, t.columns));
  float tile_elements = length / float(t.leaves) * tile_leaves * tile_outputs, tile_bytes = tile_elements * float(q.size);
  float blocks = float(t.tiles) / (plan.is<RingPlan>() ? float(plan.warps) : 1);
  float at_once =
      processors * float(std::max(1, std::visit(Resident{plan, plan.vector * q.lane_bytes / 4}, plan.shape) / plan.warps));
  float waves = blocks / at_once;
  // The fastest dim in memory: its size, its stride, and the stride from one row of it to the next.
  float neighbours = float(plan.by_columns ? (q.p.kept.empty() ? 1 : q.p.kept.back().size) : q.p.reduced.back().size);
  float step = float(plan.by_columns ? (q.p.kept.empty() ? 1 : q.p.kept.back().stride) : q.p.reduced.back().stride);
  float pitch = plan.by_columns    ? float(q.p.reduced.empty() ? 1 : q.p.reduced.back().stride)
                : q.p.kept.empty() ? length
                                   : float(q.p.kept.back().stride);
};

// Name and value. Amounts of work are per multiprocessor.
#define GPUREDUCE_FEATURES(X)                                                                          \
  X(kernel, plan.shape.index())                                                                        \
  X(walk, plan.walk)                                                                                   \
  X(vector_bytes, plan.vector* q.element_bytes)                                                        \
  X(order_free, q.order_free)                                                                          \
  X(length, f.length)                                                                                  \
  X(outputs, f.outputs / f.processors)                                                                 \
  X(neighbours, f.neighbours* q.size)                                                                  \
  X(gaps, f.step)                                                                                      \
  X(stride, f.pitch* q.size)                                                                           \
  X(bytes, f.read / f.processors)                                                                      \
  X(written, f.written / f.processors)                                                                 \
  X(tile_bytes, f.tile_bytes)                                                                          \
  X(tiles, f.blocks / f.processors)                                                                    \
  X(waves, f.waves)                                                                                    \
  X(last_wave, f.waves / std::ceil(f.waves))                                                           \
  X(warps, plan.warps)                                                                                 \
  X(warp_bytes, f.tile_bytes / float(plan.warps))                                                      \
  X(splits, f.t.splits)                                                                                \
  X(cluster, plan.cluster)                                                                             \
  X(join, plan.joins.empty() ? 0 : float(plan.joins[0].count) * f.outputs / f.processors)              \
  X(filled, float(f.t.splits) * float(f.t.tile_leaves) / float(f.t.leaves) * float(f.t.column_tiles) * \
                float(f.t.tile_outputs) / float(f.t.columns))                                          \
  X(ragged, float(q.p.length % kChunk) / kChunk)                                                       \
  X(elements, f.shape.elements)                                                                        \
  X(batches, f.shape.batches)                                                                          \
  X(width, f.shape.width)                                                                              \
  X(stage, f.shape.stage)                                                                              \
  X(block_written, f.t.tile_outputs* q.written_bytes)                                                  \
  X(thread_work, f.tile_elements / float(plan.warps * kWarp))                                          \
  X(in_flight, std::min(f.blocks, f.at_once) * f.tile_bytes / f.processors)                            \
  X(by_columns, plan.by_columns)

#define GPUREDUCE_COUNT(name, value) +1
constexpr int kFeatures = GPUREDUCE_FEATURES(GPUREDUCE_COUNT);
#undef GPUREDUCE_COUNT
using Features = std::array<float, kFeatures>;

Features known_of(const Plan& plan, const Request& q) {
  const Facts f{plan, q};
  return {
#define GPUREDUCE_VALUE(name, value) static_cast<float>(value),
      GPUREDUCE_FEATURES(GPUREDUCE_VALUE)
#undef GPUREDUCE_VALUE
  };
}

}  // namespace

std::vector<float> features_of(const Plan& plan, const Reduction& r, const Device& device) {
  const Features known = known_of(plan, Request(r, device, plan.by_columns));
  return {known.begin(), known.end()};
}

int feature_count() { return kFeatures; }

std::string feature_names() {
  std::string names, kernels;
  for (size_t k = 0; k < std::variant_size_v<Shape>; ++k) kernels += (k ? "," : "") + std::string(kernel_name(k));
#define GPUREDUCE_NAME(name, value) names += names.empty() ? #name "(" + kernels + ")" : " " #name;
  GPUREDUCE_FEATURES(GPUREDUCE_NAME)
#undef GPUREDUCE_NAME
  return names;
}

size_t choose(const std::vector<Plan>& plans, const Reduction& r, const Device& device) {
  if (plans.size() == 1) return 0;
  const Choice& choice = device.choice ? *device.choice : known_choice("", device);
  const Request request(r, device, fastest_dim_is_kept(r.problem));
  size_t best = 0;
  float least = INFINITY;
  for (size_t i = 0; i < plans.size(); ++i) {
    const float guess = choice.guess(known_of(plans[i], request).data());
    if (guess < least) least = guess, best = i;
  }
  return best;
}

}  // namespace gpureduce
