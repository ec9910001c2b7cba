// From a plan to a kernel launch.
#pragma once

#include <algorithm>

#include "columns/columns.cuh"
#include "dense/dense.cuh"
#include "expanded/expanded.cuh"
#include "launch.h"
#include "panels/panels.cuh"
#include "ring/ring_rows.cuh"

namespace gpureduce::cuda {

template <class Source, class Acc>
OutputOf<Source, Acc> output_of(const Launch& launch) {
  Acc* const partials = launch.plan.joins.empty() ? nullptr : static_cast<Acc*>(launch.workspace);
  return output_of<Acc, is_lean<Source>, OwnResultOf<Source>>(launch.reduction, partials);
}

template <class Source, class Acc>
Args<Source, Acc> make_args(const Launch& launch, const Source& source) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  const auto* columns = std::get_if<ColumnsPlan>(&plan.shape);
  const auto* ring = std::get_if<RingPlan>(&plan.shape);
  const auto reduced = reduced_nest<Source::kRank>(r.problem);
  return {source,
          r.problem.length,
          columns ? columns->width : 0,
          columns ? columns->batches : 0,
          plan.tiling,
          output_of<Source, Acc>(launch),
          kept_nest<Source::kRank>(r.problem),
          reduced,
          reduced.template stride<kInnerDims>(kLanes),
          reduced.template stride<kInnerDims>(1),
          ring ? *ring : RingPlan{},
          input_span(r)};
}

// The columns kernel for so many elements of a leaf at once.
template <int V, int kElements, Walk walk, class Acc, class Source>
auto columns_kernel(const ColumnsPlan& plan) {
  constexpr int kMany = column_batches(V);
  if constexpr (walk != Walk::nested)
    if (plan.batches == 1) return columns<V, kElements, 1, walk, Source, Acc>;
  return columns<V, kElements, kMany, walk, Source, Acc>;
}

template <int V, Walk walk, class Acc, class Source>
auto columns_kernel(const ColumnsPlan& plan) {
  if constexpr (is_lean<Source>)
    return plan.elements == 1 ? columns_kernel<V, 1, walk, Acc, Source>(plan)
                              : columns_kernel<V, kLoads, walk, Acc, Source>(plan);
  else
    return plan.elements == 1   ? columns_kernel<V, 1, walk, Acc, Source>(plan)
           : plan.elements == 2 ? columns_kernel<V, 2, walk, Acc, Source>(plan)
           : plan.elements == 4 ? columns_kernel<V, 4, walk, Acc, Source>(plan)
                                : columns_kernel<V, kLoads, walk, Acc, Source>(plan);
}

// The thin kernel for so many elements of an output.
template <int V, int kElements, Walk walk, class Acc, class Source>
auto thin_kernel(const ThinPlan& plan) {
  constexpr int kMany = thin_runs(V, kElements, sizeof(typename Source::Element));
  return plan.runs > 1 ? thin<V, kElements, kMany, walk, Source, Acc> : thin<V, kElements, 1, walk, Source, Acc>;
}

template <int V, Walk walk, class Acc, class Source>
auto full_thin_kernel(const ThinPlan& plan) {
  if constexpr (wholes_columns(V))
    if (plan.elements > kLoads) return thin<V, kLanes, 1, walk, Source, Acc>;
  if constexpr (walk != Walk::nested)  // else there are four at least
    if (plan.elements == 2) return thin_kernel<V, 2, walk, Acc, Source>(plan);
  return plan.elements == 4 ? thin_kernel<V, 4, walk, Acc, Source>(plan) : thin_kernel<V, kLoads, walk, Acc, Source>(plan);
}

template <int V, Walk walk, class Acc, class Source>
auto thin_kernel(const ThinPlan& plan) {
  if constexpr (is_lean<Source> && !is_any<Source>) return thin<V, kLoads, 1, walk, Source, Acc>;
  else if constexpr (is_lean<Source>)
    return plan.elements > kLoads ? thin<V, kLanes, 1, walk, Source, Acc> : thin<V, kLoads, 1, walk, Source, Acc>;
  else return full_thin_kernel<V, walk, Acc, Source>(plan);
}

template <class Arguments>
cudaError_t start_with(const Launch& launch, void (*kernel)(Arguments), dim3 threads, int shared_bytes, const Arguments& args) {
  return start_kernel(launch.queue(), launch.plan.grid, threads, shared_bytes, kernel, args);
}

template <class Source, class Acc>
using KernelOf = void (*)(Args<Source, Acc>);

template <class Source, class Acc>
cudaError_t start(const Launch& launch, const Source& source, KernelOf<Source, Acc> kernel, int threads, int shared_bytes = 0) {
  return start_with(launch, kernel, threads, shared_bytes, make_args<Source, Acc>(launch, source));
}

template <class Acc, class Source>
cudaError_t launch_ring(const Launch& launch, const Source& source) {
  const Plan& plan = launch.plan;
  const KernelOf<Source, Acc> kernel = ring_rows<Source, Acc>;
  // Calls of other shapes share the kernel, in other threads too: all of them set the same bound.
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes))
    return error;
  const int bytes = static_cast<int>(plan.as<RingPlan>().shared_bytes(plan.warps));
  return start<Source, Acc>(launch, source, kernel, plan.warps * kWarp, bytes);
}

template <int V, int kElements, Walk walk, class Acc, class Source>
auto panel_kernel(const PanelsPlan& plan) {
  using Sums = Lanes<typename Source::Element, Acc, V>;
  constexpr int kMany = panel_batches(V, panel_words<Source, Acc, V>, kElements, Sums::kOrderFree, walk);
  return plan.batches > 1 ? panels<V, kElements, kMany, walk, Source, Acc> : panels<V, kElements, 1, walk, Source, Acc>;
}

template <int V, Walk walk, class Acc, class Source>
auto full_panel_kernel(const PanelsPlan& plan) {
  constexpr int kFewest = walk == Walk::shifted ? shifted_column_elements(sizeof(typename Source::Element)) : 1;
  return plan.elements == 1   ? panel_kernel<V, std::max(kFewest, 1), walk, Acc, Source>(plan)
         : plan.elements == 2 ? panel_kernel<V, std::max(kFewest, 2), walk, Acc, Source>(plan)
         : plan.elements == 4 ? panel_kernel<V, 4, walk, Acc, Source>(plan)
                              : panel_kernel<V, kDepth, walk, Acc, Source>(plan);
}

template <int V, Walk walk, class Acc, class Source>
auto panel_kernel(const PanelsPlan& plan) {
  if constexpr (is_lean<Source>)
    return plan.elements == 1 ? panels<V, 1, 1, walk, Source, Acc> : panels<V, kDepth, 1, walk, Source, Acc>;
  else return full_panel_kernel<V, walk, Acc, Source>(plan);
}

template <int V, class Acc, class Source>
auto panel_kernel(const Plan& p) {
  const PanelsPlan& plan = p.as<PanelsPlan>();
  constexpr int kSize = sizeof(typename Source::Element);
  if constexpr (shifts(kSize) && !is_lean<Source>)
    if (p.walk == Walk::shifted) return panel_kernel<V, Walk::shifted, Acc, Source>(plan);
  if constexpr (spreads(kSize) && !is_lean<Source>)
    if (p.walk == Walk::spread) return panel_kernel<V, Walk::spread, Acc, Source>(plan);
  return panel_kernel<V, Walk::linear, Acc, Source>(plan);
}

template <int V, class Acc, class Source>
cudaError_t launch_panels(const Launch& launch, const Source& source) {
  using LaneSum = typename Lanes<typename Source::Element, Acc, V>::LaneSum;
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  const PanelsPlan& panel = plan.as<PanelsPlan>();
  const Tiling& t = plan.tiling;
  const auto& kept = r.problem.kept;
  const KeptDim column = kept.back(), batch = kept.size() > 1 ? kept[kept.size() - 2] : KeptDim{};
  const auto log = [](int x) { return static_cast<int8_t>(__builtin_ctz(x)); };  // of powers of two
  const int side = panel.width * V;
  const PanelArgs<Source, Acc> args{source,
                                    r.problem.reduced[0].stride,
                                    r.problem.length,
                                    static_cast<int32_t>(t.columns),
                                    t.tile_outputs,
                                    t.tile_leaves,
                                    panel.units,
                                    static_cast<int8_t>(plan.warps),
                                    log(panel.width),
                                    log(panel.rows),
                                    log(panel.parts),
                                    kept.size() > 2,
                                    batch.stride,
                                    column.out_stride,
                                    batch.out_stride,
                                    t.partial_output_stride,
                                    t.partial_split_stride,
                                    input_span(r),
                                    output_of<Source, Acc>(launch),
                                    kept_nest<Source::kRank>(r.problem)};
  const int bytes = panel.rows * side * sizeof(LaneSum);
  return start_with(launch, panel_kernel<V, Acc, Source>(plan), plan.warps * kWarp, bytes, args);
}

template <int V, Walk walk, class Acc, class Source>
auto dense_kernel(const Plan& plan) {
  const int elements = plan.as<DensePlan>().elements;
  if constexpr (!is_lean<Source> || walk != Walk::shifted)
    if (elements == 2) return dense_rows<V, 2, walk, Source, Acc>;
  if constexpr (walk != Walk::deep && !is_lean<Source>)
    if (elements == 4) return dense_rows<V, 4, walk, Source, Acc>;
  return dense_rows<V, kDepth, walk, Source, Acc>;
}

template <int V, class Acc, class Source>
auto dense_kernel(const Plan& plan, const Problem& p) {
  const Walk walk = dense_walk(plan.walk, p, is_lean<Source>, is_any<Source>);
  if (walk == Walk::deep) return dense_kernel<V, Walk::deep, Acc, Source>(plan);
  if constexpr (is_any<Source>) {
    return dense_kernel<V, Walk::linear, Acc, Source>(plan);
  } else if constexpr (is_lean<Source>) {
    if constexpr (V > 1 && shifts(sizeof(typename Source::Element)) && !IsLogSum<Acc>::value)
      if (walk == Walk::shifted) return dense_kernel<V, Walk::shifted, Acc, Source>(plan);
    return dense_kernel<V, Walk::dense, Acc, Source>(plan);
  } else {
    if (walk == Walk::nested) return dense_kernel<V, Walk::nested, Acc, Source>(plan);
    if constexpr (V == 1) {
      if (walk == Walk::linear) return dense_kernel<V, Walk::linear, Acc, Source>(plan);
    } else if constexpr (shifts(sizeof(typename Source::Element))) {
      if (walk == Walk::shifted) return dense_kernel<V, Walk::shifted, Acc, Source>(plan);
    }
    return dense_kernel<V, Walk::dense, Acc, Source>(plan);
  }
}

template <int V, Walk walk, class Acc, class Source>
auto flat_kernel(const FlatPlan& plan) {
  constexpr bool kLean = is_lean<Source>, kPieces = walk == Walk::dense;
  constexpr auto groups = [](int count) {
    return std::min(kLean ? lean_flat_groups(count) : count, flat_groups(V * sizeof(typename Source::Element), V));
  };
  constexpr int kSixteen = kLean ? lean_flat_width(kPieces, 16) : 16;
  constexpr int kLeast = flat_width(kPieces, kLean, V);
  switch (plan.width * plan.groups) {
    case 1: return flat_rows<V, std::max(1, kLeast), 1, walk, Source, Acc>;
    case 2: return flat_rows<V, std::max(2, kLeast), 1, walk, Source, Acc>;
    case 4: return flat_rows<V, std::max(4, kLeast), 1, walk, Source, Acc>;
    case 8: return flat_rows<V, std::max(8, kLeast), 1, walk, Source, Acc>;
    case 16: return flat_rows<V, kSixteen, 1, walk, Source, Acc>;
    case 32: return flat_rows<V, 32, 1, walk, Source, Acc>;
    case 64: return flat_rows<V, 32, groups(2), walk, Source, Acc>;
    case 128: return flat_rows<V, 32, groups(4), walk, Source, Acc>;
    case 256: return flat_rows<V, 32, groups(8), walk, Source, Acc>;
    default: return flat_rows<V, 32, groups(16), walk, Source, Acc>;
  }
}

// A launch of a kernel that takes DenseArgs.
template <class Acc, class Source>
cudaError_t start_dense(const Launch& launch, const Source& source, int unit_leaves, int next, int next_row,
                        void (*kernel)(DenseArgs<Source, Acc>)) {
  const Reduction& r = launch.reduction;
  const Tiling& t = launch.plan.tiling;
  const KeptDim row = r.problem.kept.empty() ? KeptDim{} : r.problem.kept.back();
  const auto kept = kept_nest<Source::kRank>(r.problem);
  const auto reduced = reduced_nest<Source::kRank>(r.problem);
  const bool alone = launch.plan.is<DensePlan>() && t.splits == 1 && row_alone(t.leaves, unit_leaves, launch.plan.walk);
  using Count = typename DenseArgs<Source, Acc>::Count;
  const DenseArgs<Source, Acc> args{source,
                                    row.stride,
                                    static_cast<Count>(t.outputs),
                                    static_cast<uint16_t>(launch.plan.warps),
                                    alone,
                                    kept.rank > 1,
                                    r.problem.length,
                                    row.out_stride,
                                    output_of<Source, Acc>(launch),
                                    static_cast<Count>((t.leaves + unit_leaves - 1) / unit_leaves),
                                    t.splits,
                                    t.tile_leaves / unit_leaves,
                                    kept,
                                    reduced,
                                    reduced.template stride<kInnerDims>(next),
                                    input_span(r),
                                    kept.template stride<kInnerDims>(next_row)};
  return start_with(launch, kernel, launch.plan.warps * kWarp, 0, args);
}

template <int V, class Acc, class Source>
cudaError_t launch_dense(const Launch& launch, const Source& source) {
  const Plan& plan = launch.plan;
  const int unit_leaves = row_unit(V, plan.as<DensePlan>().elements, sizeof(typename Source::Element), plan.walk);
  return start_dense<Acc>(launch, source, unit_leaves, kLanes, 0, dense_kernel<V, Acc, Source>(plan, launch.reduction.problem));
}

template <class Acc, class Source>
cudaError_t launch_flat(const Launch& launch, const Source& source) {
  constexpr int kSize = sizeof(typename Source::Element);
  const int vector = launch.plan.vector;
  const FlatPlan& plan = launch.plan.as<FlatPlan>();
  const auto start = [&](auto kernel) {
    return start_dense<Acc>(launch, source, launch.plan.tiling.tile_leaves, 0, 0, kernel);
  };
  constexpr bool kSingle = !is_lean<Source>;  // single elements are pieces, too
  if constexpr (kSize < 4 || (kSize == 4 && kSingle))
    if (vector * kSize == 4) return start(flat_kernel<4 / kSize, Walk::dense, Acc, Source>(plan));
  if constexpr (kSize < 8 || (kSize == 8 && kSingle))
    if (vector * kSize == 8) return start(flat_kernel<8 / kSize, Walk::dense, Acc, Source>(plan));
  return start(flat_kernel<16 / kSize, Walk::dense, Acc, Source>(plan));
}

// Of the kernels whose threads own outputs.
template <int V, class Acc, class Source>
KernelOf<Source, Acc> output_kernel(const Plan& plan) {
  const bool nested = is_lean<Source> || plan.walk == Walk::nested;
  if (plan.is<ThinPlan>()) {
    const ThinPlan& thin = plan.as<ThinPlan>();
    if constexpr (is_lean<Source>) return thin_kernel<V, Walk::nested, Acc, Source>(thin);
    else return nested ? thin_kernel<V, Walk::nested, Acc, Source>(thin) : thin_kernel<V, Walk::linear, Acc, Source>(thin);
  }
  if (plan.is<ExpandedPlan>()) return expanded<Source, Acc>;
  const ColumnsPlan& columns = plan.as<ColumnsPlan>();
  if constexpr (V == column_vector(V, Walk::linear) && !is_lean<Source>)
    if (!nested) return columns_kernel<V, Walk::linear, Acc, Source>(columns);
  return columns_kernel<V, Walk::nested, Acc, Source>(columns);
}

template <int V, class Acc, class Source>
cudaError_t launch_width(const Launch& launch, const Source& source) {
  const Plan& plan = launch.plan;
  if (plan.is<DensePlan>()) return launch_dense<V, Acc>(launch, source);
  if constexpr (V == 1 || !is_lean<Source>) {
    if (plan.is<FlatPlan>()) {
      const FlatPlan& flat = plan.as<FlatPlan>();
      return start_dense<Acc>(launch, source, plan.tiling.tile_leaves, kWarp * V, kWarp / flat.width,
                              flat_kernel<V, Walk::nested, Acc, Source>(flat));
    }
  }
  return start<Source, Acc>(launch, source, output_kernel<V, Acc, Source>(plan), plan.warps * kWarp);
}

template <class In, class Acc>
cudaError_t launch_typed(const Launch& launch) {
  constexpr int kVector = sizeof(In) < 16 ? 16 / sizeof(In) : 1;
  const Reduction& r = launch.reduction;
  const auto source = Typed<In>::of(r.input, l2_policy(launch.plan), masks_of(r));
  if (launch.plan.is<FlatPlan>() && reads_pieces(launch.plan.walk, launch.plan.vector, sizeof(In), is_lean<Typed<In>>))
    return launch_flat<Acc>(launch, source);
  if constexpr (rings_rows(sizeof(In)) && !IsMapped<In>::value)
    if (launch.plan.is<RingPlan>()) return launch_ring<Acc>(launch, source);
  if constexpr (kVector > 1)
    if (launch.plan.is<PanelsPlan>()) return launch_panels<kVector, Acc>(launch, source);
  if constexpr (kVector > 1)
    if (launch.plan.vector == kVector) return launch_width<kVector, Acc>(launch, source);
  return launch_width<1, Acc>(launch, source);
}

// Sums of elements of one dtype.
template <Family family>
cudaError_t reduce_family(const Launch& launch) {
  switch (launch.reduction.in) {
#define GPUREDUCE_LAUNCH(name, type, kind, own, wide, kernels)                                                   \
  case DType::name:                                                                                              \
    if constexpr (Family::kernels == family) return launch_typed<Compiled<type>, Sum<Accumulator::own>>(launch); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_LAUNCH)
#undef GPUREDUCE_LAUNCH
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
