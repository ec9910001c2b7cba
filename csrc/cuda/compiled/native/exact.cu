#include "../../exact_launch.cuh"

#include <algorithm>

namespace gpureduce::cuda {

namespace {

Dims nest_of_runs(const Problem& p) {
  Dims n;
  for (size_t i = 0; i + 1 < p.reduced.size(); ++i) n.add(p.reduced[i].size, p.reduced[i].stride, 0);
  n.narrow = p.length / p.reduced.back().size < int64_t{1} << 31;
  return n;
}
Dims nest_of_batches(const Problem& p) {
  Dims n;
  for (size_t i = 0; i + 1 < p.kept.size(); ++i) n.add(p.kept[i].size, p.kept[i].stride, p.kept[i].out_stride);
  n.narrow = p.outputs / p.kept.back().size < int64_t{1} << 31;
  return n;
}

uint32_t blocks_of(int64_t warps, int threads) { return static_cast<uint32_t>(ceil_div(warps, threads / kWarp)); }

template <class T>
cudaError_t start(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, const ExactInput& input, Queue queue) {
  const Problem& p = sum.problem;
  if (plan.kernel == ExactPlan::Kernel::short_rows) {
    const int64_t rows = (kRowLoads >> plan.runs.log_steps) * plan.runs.side();
    const ExactShortRows args{input, plan.runs, static_cast<int8_t>(log2_up(plan.runs.length)), result,
                              kept_nest<kFastRank>(p)};
    return start_kernel(queue, {blocks_of(ceil_div(p.outputs, rows), kRowThreads<T>)}, kRowThreads<T>, 0, exact_short_rows<T>,
                        args);
  }
  if (plan.kernel == ExactPlan::Kernel::rows) {
    const ExactRows args{input,          plan.runs,
                         plan.aligned,   static_cast<int8_t>(plan.log_warps),
                         plan.tiles,     plan.tiles_of_run,
                         plan.parts,     plan.part_size,
                         result,         kept_nest<kFastRank>(p),
                         nest_of_runs(p)};
    const Grid grid{blocks_of(p.outputs << plan.log_warps, kRowThreads<T>), static_cast<uint32_t>(plan.parts)};
    return start_kernel(queue, grid, kRowThreads<T>, 0, exact_rows<T>, args);
  }
  const int64_t columns = p.kept.back().size, batches = p.outputs / columns, depth = std::min(batches, kMaxGridDepth);
  const ExactColumns args{input,
                          columns,
                          p.length,
                          plan.parts,
                          plan.part_size,
                          static_cast<uint32_t>(plan.tiles),
                          static_cast<int8_t>(plan.log_width),
                          plan.aligned,
                          result,
                          p.kept.back().out_stride,
                          nest_of_batches(p),
                          reduced_nest<kFastRank>(p)};
  const Grid grid{static_cast<uint32_t>(plan.tiles * plan.parts), static_cast<uint32_t>(depth),
                  static_cast<uint32_t>(ceil_div(batches, depth))};
  return start_kernel(queue, grid, kColumnThreads<T>, 0, exact_columns<T>, args);
}

}  // namespace

cudaError_t start_exact(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, const ExactInput& input,
                        Queue queue) {
  switch (sum.in) {
    case DType::Float: return start<float>(sum, plan, result, input, queue);
    case DType::BFloat16: return start<BFloat16>(sum, plan, result, input, queue);
    case DType::Half: return start<Half>(sum, plan, result, input, queue);
    case DType::Double: return start<double>(sum, plan, result, input, queue);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
