// The second kernel of weighted sums: joins the partial sums that the blocks of the first one left.
#pragma once

#include "weighted.cuh"

namespace gpureduce::cuda {

constexpr int kJoinLevels = 20;  // a thread joins at most 2^20 runs of kJoinRun partial sums

template <class Acc, class Writer, int kRank>
struct JoinWeightedArgs {
  const Acc* partials;
  int64_t output_stride, split_stride, outputs, count;
  int32_t threads;  // an output: a power of two
  Writer output;
  Nest<kRank> results;
};

// Neighbouring threads take neighbouring outputs, and others of the block further runs of an output's partial sums.
template <class Acc, class Writer, int kRank>
__global__ void __launch_bounds__(1024, 1) join_pairs(const __grid_constant__ JoinWeightedArgs<Acc, Writer, kRank> a) {
  __shared__ Acc slots[1024];
  const int side = blockDim.x / a.threads, across = threadIdx.x & (side - 1), member = threadIdx.x / side;
  const int64_t output = (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * side + across;
  int64_t run = kJoinRun;
  while (run * a.threads < a.count) run *= 2;
  wait_for_previous_kernel();
  allow_next_kernel();
  Acc waiting[kJoinLevels], all = padding<Acc>();
  const Acc* const partials = a.partials + output * a.output_stride;
  for (int64_t k = 0; k < run / kJoinRun; ++k) {
    Acc v[kJoinRun];
#pragma unroll
    for (int i = 0; i < kJoinRun; ++i) {
      const int64_t at = member * run + k * kJoinRun + i;
      v[i] = at < a.count && output < a.outputs ? partials[at * a.split_stride] : padding<Acc>();
    }
    all = join_neighbours(v);
    if (run > kJoinRun) carry(waiting, all, k);  // or else nothing waits, and no memory is touched for it
  }
  for (int left = a.threads; left > 1; left /= 2) {
    slots[threadIdx.x] = all;
    __syncthreads();
    if (member < left / 2) all = slots[2 * member * side + across] + slots[(2 * member + 1) * side + across];
    __syncthreads();
  }
  if (member == 0 && output < a.outputs) write(a.output, a.results, output, 0, all);
}

template <class Acc, int kRank, class Writer>
cudaError_t join_ranked(const WeightedLaunch& launch, const Writer& writer) {
  const weighted::Reduction& r = launch.reduction;
  const WeightedPlan& plan = launch.plan;
  const bool columns = plan.kernel == WeightedKernel::columns;
  const JoinWeightedArgs<Acc, Writer, kRank> args{static_cast<const Acc*>(launch.partials),
                                                  columns ? 1 : plan.splits,
                                                  columns ? r.problem.outputs : 1,
                                                  r.problem.outputs,
                                                  plan.splits,
                                                  plan.join_threads,
                                                  writer,
                                                  weighted::output_nest<kRank>(r.problem)};
  const int threads = plan.join_threads > kWeightedThreads ? plan.join_threads : kWeightedThreads;
  const int64_t side = threads / plan.join_threads;
  return start_weighted(launch.queue.next(), join_pairs<Acc, Writer, kRank>, (r.problem.outputs + side - 1) / side, threads,
                        args);
}

template <class Acc, class Writer>
cudaError_t join_weighted(const WeightedLaunch& launch, const Writer& writer) {
  const weighted::Problem& p = launch.reduction.problem;
  if (fits_fast_nest(p.kept, p.outputs)) return join_ranked<Acc, kFastRank>(launch, writer);
  return join_ranked<Acc, kMaxRank>(launch, writer);
}

}  // namespace gpureduce::cuda
