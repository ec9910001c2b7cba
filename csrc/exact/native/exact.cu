#include "../launch.cuh"

namespace gpureduce::cuda {

namespace {

// All dims but the last, whose size is `last`.
template <class Place, class Dim, class Out>
DimsOf<Place> nest_of_others(DimList<Dim> dims, int64_t count, Out out) {
  const int64_t last = dims.back().size;
  dims.pop_back();
  return nest_of<kFastRank, Place>(dims, count / last, out);
}

template <class Source>
cudaError_t start(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, const Source& source, Queue queue) {
  using Place = typename Source::Place;
  const Problem& p = sum.problem;
  if (plan.kernel == ExactPlan::Kernel::short_rows) {
    const ExactShortRows<Source> args{source, plan.runs, static_cast<int8_t>(log2_up(plan.runs.length)), result,
                                      kept_nest<kFastRank, Place>(p)};
    return start_kernel(queue, plan.grid, plan.threads, 0, exact_short_rows<Source>, args);
  }
  if (plan.kernel == ExactPlan::Kernel::rows) {
    const ExactRows<Source> args{source,
                                 plan.runs,
                                 plan.aligned,
                                 static_cast<int8_t>(plan.log_warps),
                                 plan.tiles,
                                 plan.tiles_of_run,
                                 plan.parts,
                                 plan.part_size,
                                 result,
                                 kept_nest<kFastRank, Place>(p),
                                 nest_of_others<Place>(p.reduced, p.length, [](const ReducedDim&) { return 0; })};
    return start_kernel(queue, plan.grid, plan.threads, 0, exact_rows<Source>, args);
  }
  const ExactColumns<Source> args{source,
                                  p.kept.back().size,
                                  p.length,
                                  plan.parts,
                                  plan.part_size,
                                  static_cast<uint32_t>(plan.tiles),
                                  static_cast<int8_t>(plan.log_width),
                                  plan.aligned,
                                  result,
                                  p.kept.back().out_stride,
                                  nest_of_others<Place>(p.kept, p.outputs, [](const KeptDim& d) { return d.out_stride; }),
                                  reduced_nest<kFastRank, Place>(p)};
  return start_kernel(queue, plan.grid, plan.threads, 0, exact_columns<Source>, args);
}

template <class T>
cudaError_t start_elements(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, Queue queue) {
  const OneTensor<T> source{static_cast<const T*>(sum.input), l2_policy(plan.streams), {sum.negate, sum.nan_is_zero}};
  return start(sum, plan, result, source, queue);
}

cudaError_t start_products(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, Queue queue) {
  bool smaller = false;  // the second tensor, which then stays in the L2
  for (const KeptDim& d : sum.problem.kept) smaller |= d.second == 0;
  for (const ReducedDim& d : sum.problem.reduced) smaller |= d.second == 0;
  const TwoTensors source{{sum.input, l2_policy(plan.streams), sum.in},
                          {sum.second, l2_policy(plan.streams && !smaller), sum.second_dtype},
                          plan.repeats,
                          sum.addends == ExactAddends::squares,
                          {sum.negate != sum.second_negate, false}};
  return start(sum, plan, result, source, queue);
}

}  // namespace

cudaError_t start_exact(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, Queue queue) {
  if (sum.addends != ExactAddends::elements) return start_products(sum, plan, result, queue);
  switch (sum.in) {
    case DType::Float: return start_elements<float>(sum, plan, result, queue);
    case DType::BFloat16: return start_elements<BFloat16>(sum, plan, result, queue);
    case DType::Half: return start_elements<Half>(sum, plan, result, queue);
    case DType::Double: return start_elements<double>(sum, plan, result, queue);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
