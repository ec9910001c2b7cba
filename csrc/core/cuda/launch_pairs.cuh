// From a weighted sum to the kernels of its two dtypes.
#pragma once

#include "launch.cuh"

namespace gpureduce::cuda {

// True if neighbours in the fastest dim, as the plan reads it, share one element of the second input.
inline bool has_one_second(const Launch& launch) {
  const Problem& p = launch.reduction.problem;
  if (launch.plan.by_columns) return !p.kept.empty() && p.kept.back().second == 0;
  return !p.reduced.empty() && p.reduced.back().second == 0;
}

// The second input stays in the L2 if it is smaller than the first.
inline uint64_t second_policy(const Launch& launch) {
  bool smaller = false;
  for (const KeptDim& d : launch.reduction.problem.kept) smaller |= d.second == 0 && d.stride != 0;
  for (const ReducedDim& d : launch.reduction.problem.reduced) smaller |= d.second == 0 && d.stride != 0;
  return l2_policy(launch.plan.streams && !smaller);
}

template <class A, class B, class Acc>
cudaError_t launch_pair(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const Pair<A, B> source{static_cast<const A*>(r.input), static_cast<const B*>(r.second), l2_policy(launch.plan.streams),
                          second_policy(launch), has_one_second(launch)};
  return launch_source<Pair<A, B>, Acc>(launch, source);
}

// Pairs whose first input has a half type.
template <class Half>
cudaError_t launch_half(const Launch& launch) {
  switch (launch.reduction.second_dtype) {
    case DType::Float: return launch_pair<Half, float, float>(launch);
    case DType::Bool: return launch_pair<Half, Boolean, float>(launch);
    default: return launch_pair<Half, Half, float>(launch);
  }
}

}  // namespace gpureduce::cuda
