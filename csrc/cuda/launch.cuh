// From a plan to a kernel launch.
#pragma once

#include "columns.cuh"
#include "launch.h"
#include "rows.cuh"

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
          {r.output, r.out, partials},
          kept_nest<Source::kRank>(r.problem),
          reduced_nest<Source::kRank>(r.problem)};
}

template <int V, Walk walk, class Acc, class Source>
auto row_kernel(const Plan& plan) {
  if (plan.kernel == Kernel::packed) return packed<V, walk, Source, Acc>;
  if constexpr (walk == Walk::dense)
    if (plan.thread_elements == 2) return rows<V, 2, walk, Source, Acc>;
  return rows<V, kDepth, walk, Source, Acc>;
}

template <int V, Walk walk, class Acc, class Source>
auto column_kernel(const Plan& plan) {
  if (plan.kernel == Kernel::thin) return thin<V, walk, Source, Acc>;
  return plan.thread_elements == 1   ? columns<V, 1, walk, Source, Acc>
         : plan.thread_elements == 2 ? columns<V, 2, walk, Source, Acc>
                                     : columns<V, kLoads, walk, Source, Acc>;
}

template <int V, class Acc, class Source>
cudaError_t launch_width(const Launch& launch, const Source& source) {
  const Plan& plan = launch.plan;
  void (*kernel)(Args<Source, Acc>);
  if (plan.kernel == Kernel::packed || plan.kernel == Kernel::rows) {
    // One element a load gains nothing from knowing more of where it lies.
    constexpr Walk kBest = V > 1 ? Walk::dense : Walk::nested;
    kernel = plan.nested ? row_kernel<V, Walk::nested, Acc, Source>(plan) : row_kernel<V, kBest, Acc, Source>(plan);
    if constexpr (V > 1)
      if (plan.shifted) kernel = rows<V, kDepth, Walk::shifted, Source, Acc>;
  } else {
    kernel =
        plan.nested ? column_kernel<V, Walk::nested, Acc, Source>(plan) : column_kernel<V, Walk::linear, Acc, Source>(plan);
  }
  Args<Source, Acc> args = make_args<Source, Acc>(launch, source);
  void* parameters[] = {&args};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(plan.grid)), dim3(plan.warps * kWarp), parameters, 0,
                          launch.stream);
}

template <class In, class Acc>
cudaError_t launch_typed(const Launch& launch) {
  constexpr int kVector = sizeof(In) < 16 ? 16 / sizeof(In) : 1;
  const Typed<In> source{static_cast<const In*>(launch.reduction.input)};
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
