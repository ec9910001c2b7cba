#include "join.cuh"
#include "launch.h"

#include <algorithm>

namespace gpureduce::cuda {

namespace {

constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
// Threads an output from which on outputs are joined as columns: (16384, 4096) int8 21 us instead of 22.5; not with fewer.
constexpr int kLeastJoinRows = 8;

template <class Acc, int kRank>
cudaError_t join_ranked(const Launch& launch) {
  const Reduction& r = launch.reduction;
  const Plan& plan = launch.plan;
  Acc* partials = static_cast<Acc*>(launch.workspace);
  int64_t output_stride = plan.tiling.partial_output_stride, split_stride = plan.tiling.partial_split_stride;
  for (const Join& join : plan.joins) {
    const int64_t results = join.results(), outputs = plan.tiling.outputs;
    Acc* next = partials + join.count * outputs;
    JoinArgs<Acc, kRank> args{partials,
                              {r.output, r.out, results > 1 ? next : nullptr, r.divisor},
                              outputs,
                              join.count,
                              output_stride,
                              split_stride,
                              results,
                              join.threads,
                              kept_nest<kRank>(r.problem)};
    const bool columns =
        output_stride == 1 && outputs >= kWarp && results == 1 && join.threads >= kLeastJoinRows && join.threads <= kWarp;
    const int threads = columns ? kWarp * join.threads : std::max(join.threads, 128), side = threads / join.threads;
    const int64_t blocks = (outputs * results + side - 1) / side;

    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = configure(launch, std::min<int64_t>(blocks, kMaxGrid), threads, 0, &attribute);
    const auto kernel = columns ? join_columns<Acc, kRank> : join_partials<Acc, kRank>;
    if (cudaError_t error = cudaLaunchKernelEx(&config, kernel, args)) return error;
    partials = next;
    output_stride = 1;
    split_stride = outputs;
  }
  return cudaSuccess;
}

template <class Acc>
cudaError_t join_typed(const Launch& launch) {
  if (launch.reduction.problem.kept.size() <= kFastRank) return join_ranked<Acc, kFastRank>(launch);
  return join_ranked<Acc, kMaxRank>(launch);
}

}  // namespace

cudaError_t join(const Launch& launch) {
  switch (launch.reduction.accumulator) {
    case Accumulator::f32: return join_typed<float>(launch);
    case Accumulator::f64: return join_typed<double>(launch);
    case Accumulator::i64: return join_typed<int64_t>(launch);
    case Accumulator::c64: return join_typed<Complex<float>>(launch);
    case Accumulator::c128: return join_typed<Complex<double>>(launch);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
