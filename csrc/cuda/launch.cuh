// From a plan to a kernel launch.
#pragma once

#include <algorithm>

#include "columns.cuh"
#include "expanded.cuh"
#include "launch.h"
#include "narrow.cuh"
#include "ring_rows.cuh"
#include "rows.cuh"
#include "tiny.cuh"

namespace gpureduce::cuda {

template <class Source, class Acc>
Args<Source, Acc> make_args(const Launch& launch, const Source& source) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  Acc* partials = plan.joins.empty() ? nullptr : static_cast<Acc*>(launch.workspace);
  return {source,
          r.problem.length,
          plan.warp_columns,
          plan.batches,
          plan.tiling,
          {r.output, r.out, partials, r.divisor},
          kept_nest<Source::kRank>(r.problem),
          reduced_nest<Source::kRank>(r.problem),
          reduced_nest<Source::kRank>(r.problem).stride(kLanes),
          plan.ring,
          input_span(r)};
}

template <int V, Walk walk, class Acc, class Source>
auto row_kernel(const Plan& plan) {
  if (plan.kernel == Kernel::packed) return packed<V, walk, Source, Acc>;
  if constexpr (walk == Walk::dense || walk == Walk::linear) {
    if (plan.thread_elements == 2) return rows<V, 2, walk, Source, Acc>;
    if (plan.thread_elements == 4) return rows<V, 4, walk, Source, Acc>;
  }
  return rows<V, kDepth, walk, Source, Acc>;
}

template <int V, Walk walk, class Acc, class Source>
auto column_kernel(const Plan& plan) {
  if (plan.kernel == Kernel::thin)
    return plan.thread_elements == 2   ? thin<V, 2, walk, Source, Acc>
           : plan.thread_elements == 4 ? thin<V, 4, walk, Source, Acc>
                                       : thin<V, kLoads, walk, Source, Acc>;
  constexpr int kMany = column_batches(V);
  if (plan.batches > 1)
    return plan.thread_elements == 1   ? columns<V, 1, kMany, walk, Source, Acc>
           : plan.thread_elements == 2 ? columns<V, 2, kMany, walk, Source, Acc>
                                       : columns<V, kLoads, kMany, walk, Source, Acc>;
  return plan.thread_elements == 1   ? columns<V, 1, 1, walk, Source, Acc>
         : plan.thread_elements == 2 ? columns<V, 2, 1, walk, Source, Acc>
                                     : columns<V, kLoads, 1, walk, Source, Acc>;
}

template <class Source, class Acc>
using KernelOf = void (*)(Args<Source, Acc>);

template <class Source, class Acc>
cudaError_t start(const Launch& launch, const Source& source, KernelOf<Source, Acc> kernel, int threads, int shared_bytes = 0) {
  Args<Source, Acc> args = make_args<Source, Acc>(launch, source);
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = configure(launch, launch.plan.grid, threads, shared_bytes, &attribute);
  return cudaLaunchKernelEx(&config, kernel, args);
}

template <int kBytes, bool kAligned, class Acc, class Source>
KernelOf<Source, Acc> short_rows_kernel(const Plan& plan) {
  switch (plan.row_width * plan.row_groups) {
    case 1: return ring_short_rows<kBytes, kAligned, 1, 1, Source, Acc>;
    case 2: return ring_short_rows<kBytes, kAligned, 2, 1, Source, Acc>;
    case 4: return ring_short_rows<kBytes, kAligned, 4, 1, Source, Acc>;
    case 8: return ring_short_rows<kBytes, kAligned, 8, 1, Source, Acc>;
    case 16: return ring_short_rows<kBytes, kAligned, 16, 1, Source, Acc>;
    case 32: return ring_short_rows<kBytes, kAligned, 32, 1, Source, Acc>;
    case 64: return ring_short_rows<kBytes, kAligned, 32, 2, Source, Acc>;
  }
  if constexpr (kBytes < kGranule || sizeof(typename Source::Element) == 8)
    if (plan.row_groups == 4) return ring_short_rows<kBytes, kAligned, 32, 4, Source, Acc>;
  if constexpr (kBytes < 8 || sizeof(typename Source::Element) == 8)
    if (plan.row_groups == 8) return ring_short_rows<kBytes, kAligned, 32, 8, Source, Acc>;
  return nullptr;
}

template <class Acc, class Source>
KernelOf<Source, Acc> ring_kernel(const Plan& plan) {
  constexpr int kWord = std::max(4, static_cast<int>(sizeof(typename Source::Element)));
  if (plan.read_bytes == kGranule) return short_rows_kernel<kGranule, true, Acc, Source>(plan);
  if constexpr (kWord < 8)
    if (plan.read_bytes == 8) return short_rows_kernel<8, true, Acc, Source>(plan);
  if constexpr (sizeof(typename Source::Element) < 4)
    if (!plan.reads_aligned) return short_rows_kernel<kWord, false, Acc, Source>(plan);
  return short_rows_kernel<kWord, true, Acc, Source>(plan);
}

template <class Acc, class Source>
cudaError_t launch_ring(const Launch& launch, const Source& source) {
  const Plan& plan = launch.plan;
  const KernelOf<Source, Acc> kernel = ring_kernel<Acc, Source>(plan);
  const int overhead = Ring<RowsNote>::overhead(plan.warps, plan.ring.stages);
  const int bytes = plan.warps * plan.ring.stages * plan.ring.stage_bytes + overhead;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) return error;
  return start<Source, Acc>(launch, source, kernel, 2 * plan.warps * kWarp, bytes);
}

template <int V, class Acc, class Source>
cudaError_t launch_narrow(const Launch& launch, const Source& source) {
  using LaneSum = typename Lanes<typename Source::Element, Acc, V>::LaneSum;
  const Plan& plan = launch.plan;
  const int width = plan.tiling.tile_outputs * sizeof(LaneSum);
  const int bytes = whole_lines(plan.tiling.tile_leaves / plan.batches * width) + plan.batches * width;
  return start<Source, Acc>(launch, source, narrow_columns<V, Source, Acc>, plan.warps * kWarp, bytes);
}

template <int V, class Acc, class Source, int kLength = 2>
KernelOf<Source, Acc> tiny_kernel(int64_t length) {
  if constexpr (kLength < tiny_length(V))
    if (length > kLength) return tiny_kernel<V, Acc, Source, kLength + 1>(length);
  return tiny_rows<V, kLength, Source, Acc>;
}

template <int V, class Acc, class Source>
cudaError_t launch_width(const Launch& launch, const Source& source) {
  const Plan& plan = launch.plan;
  KernelOf<Source, Acc> kernel;
  if (plan.kernel == Kernel::expanded) {
    kernel = expanded<Source, Acc>;
  } else if (plan.kernel == Kernel::packed || plan.kernel == Kernel::rows) {
    kernel = plan.nested ? row_kernel<V, Walk::nested, Acc, Source>(plan) : row_kernel<V, Walk::dense, Acc, Source>(plan);
    if constexpr (V == 1)
      if (plan.linear) kernel = row_kernel<V, Walk::linear, Acc, Source>(plan);
    if constexpr (V > 1)
      if (plan.shifted) kernel = rows<V, kDepth, Walk::shifted, Source, Acc>;
  } else {
    kernel =
        plan.nested ? column_kernel<V, Walk::nested, Acc, Source>(plan) : column_kernel<V, Walk::linear, Acc, Source>(plan);
    if constexpr (V > 2)
      if (plan.shifted)
        kernel = plan.batches > 1 ? columns<V, kLoads, column_batches(V), Walk::shifted, Source, Acc>
                                  : columns<V, kLoads, 1, Walk::shifted, Source, Acc>;
  }
  return start<Source, Acc>(launch, source, kernel, plan.warps * kWarp);
}

template <class In, class Acc>
cudaError_t launch_typed(const Launch& launch) {
  constexpr int kVector = sizeof(In) < 16 ? 16 / sizeof(In) : 1;
  const Typed<In> source{static_cast<const In*>(launch.reduction.input)};
  if constexpr (sizeof(In) <= 8)
    if (launch.plan.kernel == Kernel::ring_rows) return launch_ring<Acc>(launch, source);
  if constexpr (kVector > 1 && sizeof(In) > 1)
    if (launch.plan.kernel == Kernel::tiny)
      return start<Typed<In>, Acc>(launch, source, tiny_kernel<kVector, Acc, Typed<In>>(launch.reduction.problem.length),
                                   launch.plan.warps * kWarp);
  if (launch.plan.kernel == Kernel::narrow) return launch_narrow<kVector, Acc>(launch, source);
  if constexpr (kVector > 1)
    if (launch.plan.vector == kVector) return launch_width<kVector, Acc>(launch, source);
  return launch_width<1, Acc>(launch, source);
}

// uint64 is added modulo 2^64 as int64 is, so the two share their kernels.
template <class T>
using Compiled = std::conditional_t<std::is_same_v<T, uint64_t>, int64_t, T>;

template <Family family>
cudaError_t reduce_family(const Launch& launch) {
  const Reduction& r = launch.reduction;
  switch (r.in) {
#define GPUREDUCE_LAUNCH(name, type, kind, natural, wide, kernels)                                                       \
  case DType::name:                                                                                                      \
    if constexpr (Family::kernels == family) {                                                                           \
      if (r.accumulator == Accumulator::natural) return launch_typed<Compiled<type>, Sum<Accumulator::natural>>(launch); \
      if constexpr (Accumulator::wide != Accumulator::natural)                                                           \
        return launch_typed<Compiled<type>, Sum<Accumulator::wide>>(launch);                                             \
    }                                                                                                                    \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_LAUNCH)
#undef GPUREDUCE_LAUNCH
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
