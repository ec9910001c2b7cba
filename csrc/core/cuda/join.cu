#include "join.cuh"
#include "launch.h"

#include <algorithm>

namespace gpureduce::cuda {

namespace {

// The fewest threads per output for join_columns(): with fewer, too few threads read.
constexpr int kLeastJoinRows = 8;
constexpr int kJoinThreads = 128;  // per block that joins several outputs
// The most outputs that are joined by one block each, which starts sooner.
constexpr int kFewOutputs = 1024;

// One block per output, if there are few outputs and one pass.
template <class Acc>
cudaError_t join_few_outputs(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  const Join& join = plan.joins[0];
  const Grid grid{static_cast<uint32_t>(plan.tiling.outputs)};
  const KeptDim dim = r.problem.kept.empty() ? KeptDim{} : r.problem.kept[0];
  return start_kernel(launch.queue().next(), grid, std::max(join.threads, kWarp), 0, join_rows<Acc>,
                      static_cast<const Acc*>(launch.workspace), static_cast<int>(join.count),
                      Offsets{dim.stride, dim.out_stride}, output_of<AllPaths>(r, r.path, static_cast<Acc*>(nullptr)));
}

bool has_few_outputs(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  return plan.joins.size() == 1 && plan.tiling.outputs <= kFewOutputs && plan.tiling.partial_split_stride == 1 &&
         r.problem.kept.size() <= 1;
}

template <class Acc, int kRank>
cudaError_t join_ranked(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  Acc* partials = static_cast<Acc*>(launch.workspace);
  int64_t output_stride = plan.tiling.partial_output_stride, split_stride = plan.tiling.partial_split_stride;
  for (const Join& join : plan.joins) {
    const int64_t results = join.results(), outputs = plan.tiling.outputs;
    Acc* next = partials + join.count * outputs;
    const JoinArgs<Acc, kRank> args{partials,
                                    output_stride,
                                    split_stride,
                                    outputs,
                                    join.count,
                                    join.threads,
                                    output_of<AllPaths>(r, r.path, results > 1 ? next : nullptr),
                                    kept_nest<kRank>(r.problem)};
    const bool columns =
        output_stride == 1 && outputs >= kWarp && results == 1 && join.threads >= kLeastJoinRows && join.threads <= kWarp;
    const int threads = columns ? kWarp * join.threads : std::max(join.threads, kJoinThreads), side = threads / join.threads;
    const auto kernel = columns ? join_columns<Acc, kRank> : join_partials<Acc, kRank>;
    if (cudaError_t error = start_kernel(launch.queue().next(), join.grid(outputs, side), threads, 0, kernel, args))
      return error;
    partials = next;
    output_stride = 1;
    split_stride = outputs;
  }
  return cudaSuccess;
}

template <class Acc>
cudaError_t join_typed(const Launch& launch) {
  if (launch.plan.joins.empty()) return cudaSuccess;
  if (has_few_outputs(launch)) return join_few_outputs<Acc>(launch);
  const Problem& p = launch.reduction.problem;
  if (fits_fast_nest(p.kept, p.outputs)) return join_ranked<Acc, kFastRank>(launch);
  return join_ranked<Acc, kMaxRank>(launch);
}

}  // namespace

const void* any_kernel() { return reinterpret_cast<const void*>(join_partials<float, kFastRank>); }

cudaError_t join(const Launch& launch) {
  return with_accumulator(launch.reduction.accumulator, [&](auto acc) { return join_typed<decltype(acc)>(launch); });
}

}  // namespace gpureduce::cuda
