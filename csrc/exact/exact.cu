// Exact sums: the launches of a plan.
#include "exact.h"

#include "launch.cuh"

namespace gpureduce::cuda {

namespace {

Grid line(int64_t blocks) { return {static_cast<uint32_t>(blocks)}; }

cudaError_t start(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, Queue queue) {
  if (plan.kernel != ExactPlan::Kernel::any) return start_exact(sum, plan, result, queue);
  const Problem& p = sum.problem;
  const ExactAny args{{{sum.input, sum.in, sum.negate}, {sum.second, sum.second_dtype, sum.second_negate}},
                      sum.addends != ExactAddends::elements,
                      sum.nan_is_zero,
                      static_cast<int8_t>(plan.log_lanes),
                      p.length,
                      plan.parts,
                      plan.part_size,
                      result,
                      kept_nest<kMaxRank, Both>(p),
                      reduced_nest<kMaxRank, Both>(p)};
  return with_range(sum.range(), [&](auto range) {
    return start_kernel(queue, plan.grid, plan.threads, 0, exact_any<decltype(range)>, args);
  });
}

template <class Range>
cudaError_t join_parts(const ExactPlan& plan, const ExactResult& result, const Dims& kept, Queue queue) {
  const ExactJoin args{result.partials, plan.parts, kLogJoinSlots<Range> - plan.log_members, result, kept};
  return start_kernel(queue, line(plan.join_blocks), plan.join_threads, 0, exact_join<Range>, args);
}

}  // namespace

cudaError_t run_exact(const ExactSum& given, const ExactPlan& plan, void* workspace, const Device& device,
                      cudaStream_t stream) {
  const ExactSum sum = given.ordered();
  const Problem& p = sum.problem;
  const Queue queue{stream, device.early};
  const ExactResult result{
      sum.output, plan.parts > 1 ? static_cast<int64_t*>(workspace) : nullptr, p.outputs, sum.divisor, sum.out, sum.states,
      sum.root};
  if (cudaError_t error = start(sum, plan, result, queue)) return error;
  if (plan.parts == 1) return cudaSuccess;
  return with_range(sum.range(), [&](auto range) {
    return join_parts<decltype(range)>(plan, result, kept_nest<kFastRank>(p), queue.next());
  });
}

cudaError_t round_exact(const ExactRounding& r, cudaStream_t stream) {
  const ExactRound args{r.states, {r.output, nullptr, r.count, r.divisor, r.out, false, r.root}};
  return with_range(r.range, [&](auto range) {
    return start_kernel(Queue{stream, false}, plan_rounding(r.count), kExactAnyThreads, 0, exact_round<decltype(range)>, args);
  });
}

}  // namespace gpureduce::cuda
