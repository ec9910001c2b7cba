// From a plan to a kernel launch: the table of a source's kernels, and their arguments.
#pragma once

#include <iterator>
#include <utility>

#include "../plan/units.h"
#include "kernels/columns.cuh"
#include "kernels/dense.cuh"
#include "kernels/expanded.cuh"
#include "kernels/panels.cuh"
#include "kernels/ring_rows.cuh"
#include "launch.h"

namespace gpureduce::cuda {

template <class Source, class Acc>
constexpr Variants kVariants = variants_of(
    {engine_of<Source>, static_cast<int>(sizeof(typename Source::Element)), has_one_input<typename Source::Element>});

// --- arguments of kernels -------------------------------------------------------------------------------------------------

template <class Source, class Acc>
auto output_of(const Launch& launch) {
  Acc* const partials = launch.plan.joins.empty() ? nullptr : static_cast<Acc*>(launch.workspace);
  return output_of<typename Source::Element>(launch.reduction, launch.reduction.path, partials);
}

template <class Source, class Acc>
Args<Source, Acc> args_of(const Launch& launch, const Source& source) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  const auto* columns = std::get_if<ColumnsPlan>(&plan.shape);
  const auto* ring = std::get_if<RingPlan>(&plan.shape);
  using Place = typename Source::Place;
  const auto reduced = reduced_nest<Source::kRank, Place>(r.problem);
  return {source,
          r.problem.length,
          columns ? columns->width : 0,
          columns ? columns->batches : 0,
          plan.tiling,
          output_of<Source, Acc>(launch),
          kept_nest<Source::kRank, Place>(r.problem),
          reduced,
          reduced.template stride<kInnerDims>(kLanes),
          reduced.template stride<kInnerDims>(1),
          ring ? *ring : RingPlan{},
          input_span(r)};
}

inline int8_t log2_of(int power_of_two) { return static_cast<int8_t>(__builtin_ctz(power_of_two)); }

template <class Source, class Acc>
DenseArgs<Source, Acc> dense_args_of(const Launch& launch, const Source& source) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  const Tiling& t = plan.tiling;
  const KeptDim row = r.problem.kept.empty() ? KeptDim{} : r.problem.kept.back();
  using Place = typename Source::Place;
  const auto kept = kept_nest<Source::kRank, Place>(r.problem);
  const auto reduced = reduced_nest<Source::kRank, Place>(r.problem);
  using Count = typename DenseArgs<Source, Acc>::Count;
  int unit_leaves = t.tile_leaves, next = kLanes, next_row = 0;
  uint8_t log_threads = 0;
  bool row_per_warp = false;
  if (const auto* flat = std::get_if<FlatPlan>(&plan.shape)) {
    log_threads = log2_of(flat->width * flat->groups);
    next = kWarp * plan.vector;
    next_row = kWarp / flat->width;
  } else {
    using Element = typename Source::Element;
    const int bytes = register_bytes(plan.vector, sizeof(Element), has_one_input<Element>);
    unit_leaves = row_unit(plan.vector, plan.variant.loads, bytes, plan.walk);
    row_per_warp = t.splits == 1 && fits_warp(t.leaves, unit_leaves, plan.walk);
  }
  return {source,
          stride_of<Place>(row),
          static_cast<Count>(t.outputs),
          static_cast<uint8_t>(plan.warps),
          log_threads,
          row_per_warp,
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
}

template <class Source, class Acc>
PanelArgs<Source, Acc> panel_args_of(const Launch& launch, const Source& source) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  const PanelsPlan& panel = plan.as<PanelsPlan>();
  const Tiling& t = plan.tiling;
  const auto& kept = r.problem.kept;
  using Place = typename Source::Place;
  const KeptDim column = kept.back(), batch = kept.size() > 1 ? kept[kept.size() - 2] : KeptDim{};
  return {source,
          stride_of<Place>(r.problem.reduced[0]),
          r.problem.length,
          static_cast<int32_t>(t.columns),
          t.tile_outputs,
          t.tile_leaves,
          panel.units,
          static_cast<int8_t>(plan.warps),
          log2_of(panel.width),
          log2_of(panel.rows),
          log2_of(panel.parts),
          kept.size() > 2,
          stride_of<Place>(batch),
          column.out_stride,
          batch.out_stride,
          t.partial_output_stride,
          t.partial_split_stride,
          input_span(r),
          output_of<Source, Acc>(launch),
          kept_nest<Source::kRank, Place>(r.problem)};
}

// --- kernels --------------------------------------------------------------------------------------------------------------

template <class Source, class Acc, int i>
const void* kernel_of() {
  constexpr Variant v = kVariants<Source, Acc>[i];
  constexpr int V = v.vector;
  const auto address = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
  if constexpr (v.kernel == Kernel::dense) return address(dense_rows<V, v.loads, v.walk, Source, Acc>);
  else if constexpr (v.kernel == Kernel::flat) return address(flat_rows<V, v.walk, Source, Acc>);
  else if constexpr (v.kernel == Kernel::ring) return address(ring_rows<Source, Acc>);
  else if constexpr (v.kernel == Kernel::thin) return address(thin<V, v.loads, v.batches, v.walk, Source, Acc>);
  else if constexpr (v.kernel == Kernel::columns)
    return address(columns < V, v.loads, v.batches == kAnyBatches ? column_batches(V) : v.batches, v.walk, Source, Acc >);
  else if constexpr (v.kernel == Kernel::panels) return address(panels<V, v.loads, v.walk, Source, Acc>);
  else return address(expanded<Source, Acc>);
}

template <class Source, class Acc, int... i>
const void* kernel_of(int index, std::integer_sequence<int, i...>) {
  static const void* const kernels[] = {kernel_of<Source, Acc, i>()...};
  return kernels[index];
}

template <class Source, class Acc>
cudaError_t launch_source(const Launch& launch, const Source& source) {
  constexpr Variants variants = kVariants<Source, Acc>;
  const Plan& plan = launch.plan;
  const Variant& v = plan.variant;
  const int index = variants.serving(v.kernel, v.walk, v.vector, v.loads, v.batches);
  if (index < 0) return kNoKernel;
  const void* const kernel = kernel_of<Source, Acc>(index, std::make_integer_sequence<int, variants.size()>{});
  const auto start = [&](int shared_bytes, auto args) {
    return start_address(launch.queue(), plan.grid, plan.warps * kWarp, shared_bytes, kernel, args);
  };
  switch (v.kernel) {
    case Kernel::dense:
    case Kernel::flat: return start(0, dense_args_of<Source, Acc>(launch, source));
    case Kernel::panels: {
      if constexpr (variants.has(Kernel::panels)) {
        const PanelsPlan& panel = plan.as<PanelsPlan>();
        const int lane_bytes = sizeof(Lane<typename Source::Element, Acc>);
        return start(panel.rows * panel.width * v.vector * lane_bytes, panel_args_of<Source, Acc>(launch, source));
      }
      return kNoKernel;
    }
    case Kernel::ring: {
      // Calls of other shapes share the kernel, also in other threads, so all of them set the same limit.
      const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
      if (cudaError_t error = cudaFuncSetAttribute(kernel, attribute, launch.shared_bytes)) return error;
      const int bytes = static_cast<int>(plan.as<RingPlan>().shared_bytes(plan.warps));
      return start(bytes, args_of<Source, Acc>(launch, source));
    }
    default: return start(0, args_of<Source, Acc>(launch, source));
  }
}

// --- sources --------------------------------------------------------------------------------------------------------------

// Calls `typed` with a zero of the input's dtype, if that is one of the floats of 16 bits and more.
template <class F>
cudaError_t launch_floats(const Launch& launch, F typed) {
  switch (launch.reduction.in) {
    case DType::Float: return typed(float{});
    case DType::Half: return typed(Half{});
    case DType::BFloat16: return typed(BFloat16{});
    case DType::Double: return typed(double{});
    default: return kNoKernel;
  }
}

// The elements that kernels are compiled for. Masks (masks.h) clear or flip signs as elements are loaded, so most maps share
// the kernels of values. Counted elements of one size share a type, and so do integers of one size whose maximum is taken.
template <Map map, Accumulator to, DType dtype, class In>
auto element_of_kernels() {
  using Acc = Sum<to>;
  if constexpr (is_plain_sum(map, to, info(dtype))) return Compiled<In>{};
  else if constexpr (map == Map::nonzero) return Mapped<UnsignedOf<sizeof(In)>, map>{};
  else if constexpr (std::is_same_v<Acc, Largest<int64_t>>) return Ordered<std::make_signed_t<UnsignedOf<sizeof(In)>>>{};
  else if constexpr (IsLargest<Acc>::value) return Ordered<In>{};
  else return Mapped<Compiled<In>, map>{};
}

template <Unit unit, Map map, Accumulator to>
cudaError_t launch_dtype(const Launch& launch) {
  const Reduction& r = launch.reduction;
  switch (r.in) {
#define GPUREDUCE_LAUNCH(name, type, kind, accumulator, wide, family)                                                  \
  case DType::name:                                                                                                    \
    if constexpr (unit_of(map, to, DType::name) == unit) {                                                             \
      using Source = Typed<decltype(element_of_kernels<map, to, DType::name, type>())>;                                \
      return launch_source<Source, Sum<to>>(launch, Source::of(r.input, l2_policy(launch.plan.streams), masks_of(r))); \
    }                                                                                                                  \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_LAUNCH)
#undef GPUREDUCE_LAUNCH
  }
  return kNoKernel;
}

template <Unit unit, Map map>
cudaError_t launch_accumulator(const Launch& launch) {
  switch (launch.reduction.accumulator) {
#define GPUREDUCE_LAUNCH(name, ...) \
  case Accumulator::name: return launch_dtype<unit, map, Accumulator::name>(launch);
    GPUREDUCE_ACCUMULATORS(GPUREDUCE_LAUNCH)
#undef GPUREDUCE_LAUNCH
  }
  return kNoKernel;
}

template <Unit unit>
cudaError_t launch_unit(const Launch& launch) {
  switch (kernel_map(launch.reduction)) {
#define GPUREDUCE_LAUNCH(name) \
  case Map::name: return launch_accumulator<unit, Map::name>(launch);
    GPUREDUCE_MAPS(GPUREDUCE_LAUNCH)
#undef GPUREDUCE_LAUNCH
  }
  return kNoKernel;
}

}  // namespace gpureduce::cuda
