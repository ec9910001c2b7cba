// Exact sums: which kernel takes a problem, and how it is cut.
#include "exact.h"

#include <algorithm>

#include "../core/plan/gpu.h"
#include "launch.cuh"

namespace gpureduce::cuda {

namespace {

// Where outputs are too few to fill the GPU, all multiprocessors' blocks of a kernel are resident, this often.
constexpr int kRounds = 2, kAnyBlocks = 16;
constexpr int kLeastTiles = 2;  // of a warp, or of a column's thread, where outputs are cut

using Kernel = ExactPlan::Kernel;

// What kernels of rows and of columns add: elements, or products of two narrow ones, as doubles.
bool has_products(const ExactSum& sum) { return sum.addends != ExactAddends::elements; }
bool is_narrow(DType t) { return t == DType::Float || t == DType::BFloat16 || t == DType::Half; }
bool has_kernels(const ExactSum& sum) {
  if (has_products(sum)) return is_narrow(sum.in) && is_narrow(sum.second_dtype);
  return is_narrow(sum.in) || sum.in == DType::Double;
}
bool is_wide(const ExactSum& sum) { return has_products(sum) || sum.in == DType::Double; }
int64_t size_of(const ExactSum& sum) { return is_wide(sum) ? sizeof(double) : info(sum.in).size; }

int words_of(ExactRange range) {
  return with_range(range, [](auto r) { return kExactWords<decltype(r)>; });
}

int log2_of_wanted(int64_t wanted, int most) { return std::min(log2_up(wanted), most); }

// Cuts `length` into at most `wanted` parts of at least `least` each; gives the parts' length.
int64_t part_of(int64_t length, int64_t wanted, int64_t least) {
  return std::max(ceil_div(length, std::max<int64_t>(wanted, 1)), std::min(least, length));
}

// True if the strides of all dims, or of all but the last, are multiples of `elements`.
template <class List>
bool are_multiples(const List& dims, int64_t elements, bool but_last) {
  for (size_t i = 0; i + but_last < dims.size(); ++i)
    if (dims[i].stride % elements != 0 || dims[i].second % elements != 0) return false;
  return true;
}

// True if the inputs begin at whole vectors.
bool begin_aligned(const ExactSum& sum, int64_t vector) {
  const auto fits = [&](const void* data, DType t) { return reinterpret_cast<uintptr_t>(data) % (vector * info(t).size) == 0; };
  return fits(sum.input, sum.in) && (!has_products(sum) || fits(sum.second, sum.second_dtype));
}

// Rows: the last reduced dim is a run of neighbours. Short ones are outputs of their own, or several are in a tile.
ExactPlan rows_plan(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  const bool wide = is_wide(sum);
  const int64_t vector = kGranule / size_of(sum), tile = kWarp * kRowLoads * vector, length = p.reduced.back().size;
  ExactPlan plan{Kernel::rows};
  plan.repeats = has_products(sum) && p.reduced.back().second == 0;
  plan.aligned = !plan.repeats && begin_aligned(sum, vector) && are_multiples(p.kept, vector, false) &&
                 are_multiples(p.reduced, vector, true);
  plan.runs = {p.length / length, length, 0, 0, plan.aligned && length % vector == 0};
  if (length <= tile) {
    const int log_vectors = log2_up(ceil_div(length, vector));
    plan.runs.log_lanes = static_cast<int8_t>(log_vectors <= 6 ? std::min(log_vectors, 3) : log_vectors - 3);
    plan.runs.log_steps = static_cast<int8_t>(log_vectors - plan.runs.log_lanes);
    if (p.length == length) {
      plan.kernel = Kernel::short_rows;
      plan.runs.count = p.outputs;
      return plan;
    }
  }
  if (length <= tile / 2) {
    plan.tiles = ceil_div(plan.runs.count, (kRowLoads >> plan.runs.log_steps) * plan.runs.side());
  } else {
    plan.tiles_of_run = ceil_div(length + (plan.aligned || has_products(sum) ? 0 : vector - 1), tile);
    plan.tiles = plan.tiles_of_run * plan.runs.count;
  }
  const int most = wide ? 1 : 2;
  const int64_t wanted = device.multiprocessors * kRounds * (wide ? kRowResident<double> : kRowResident<float>) / p.outputs;
  plan.log_warps = log2_of_wanted(plan.tiles / (wanted > 1 ? kLeastTiles : 8), most);
  plan.part_size = part_of(plan.tiles, wanted, kLeastTiles << plan.log_warps);
  plan.parts = ceil_div(plan.tiles, plan.part_size);
  return plan;
}

ExactPlan columns_plan(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  const bool wide = is_wide(sum);
  const int64_t size = size_of(sum), vector = wide ? kColumnVector<double> : kColumnVector<float>;
  const int64_t loads = 128 / (vector * size), width = p.kept.back().size;
  ExactPlan plan{Kernel::columns};
  plan.repeats = has_products(sum) && p.kept.back().second == 0;
  plan.aligned = width % vector == 0 && begin_aligned(sum, vector) && are_multiples(p.kept, vector, true) &&
                 are_multiples(p.reduced, vector, false);
  plan.log_width = log2_of_wanted(ceil_div(width, vector), 5);
  plan.tiles = ceil_div(width, vector << plan.log_width);
  const int height = (wide ? kColumnThreads<double> : kColumnThreads<float>) >> plan.log_width;
  const int64_t blocks = plan.tiles * (p.outputs / width);
  const int64_t resident = device.multiprocessors * (wide ? kColumnResident<double> : kColumnResident<float>);
  plan.part_size = part_of(p.length, kRounds * resident / blocks, kLeastTiles * loads * height);
  plan.parts = ceil_div(p.length, plan.part_size);
  return plan;
}

ExactPlan any_plan(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  ExactPlan plan{Kernel::any};
  const int64_t threads = int64_t{device.multiprocessors} * kAnyBlocks * kAnyThreads;
  if (p.outputs < threads) plan.log_lanes = log2_of_wanted(p.length / 4, 5);
  const bool cut = fits_fast_nest(p.kept, p.outputs);  // the kernel that joins parts has no more dims
  plan.part_size = part_of(p.length, cut ? threads / (p.outputs << plan.log_lanes) : 1, 16 << plan.log_lanes);
  plan.parts = ceil_div(p.length, plan.part_size);
  return plan;
}

// True if one stride walks neighbours of both inputs; the second one may have the same element for all of them.
template <class Dim>
bool is_run(const ExactSum& sum, const Dim& dim) {
  return dim.stride == 1 && (!has_products(sum) || dim.second == 1 || dim.second == 0);
}

// `sum` is ordered().
ExactPlan plan_of(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  const bool columns = has_columns(p);
  const bool fits = p.outputs < int64_t{1} << 31;  // grids
  if (fits && device.native && has_kernels(sum) && fits_fast_nest(p.kept, p.outputs) && fits_fast_nest(p.reduced, p.length)) {
    if (!columns && !p.reduced.empty() && is_run(sum, p.reduced.back())) return rows_plan(sum, device);
    if (columns && is_run(sum, p.kept.back())) {
      const ExactPlan plan = columns_plan(sum, device);
      if (plan.tiles * plan.parts <= kMaxGrid && p.outputs / p.kept.back().size <= kMaxGridDepth * kMaxGridDepth) return plan;
    }
  }
  return any_plan(sum, device);
}

Grid line(int64_t blocks) { return {static_cast<uint32_t>(blocks)}; }

cudaError_t start(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, bool streams, Queue queue) {
  if (plan.kernel != Kernel::any) return start_exact(sum, plan, result, streams, queue);
  const Problem& p = sum.problem;
  const ExactAny args{{{sum.input, sum.in, sum.negate}, {sum.second, sum.second_dtype, sum.second_negate}},
                      has_products(sum),
                      sum.nan_is_zero,
                      static_cast<int8_t>(plan.log_lanes),
                      p.length,
                      plan.parts,
                      plan.part_size,
                      result,
                      kept_nest<kMaxRank, Both>(p),
                      reduced_nest<kMaxRank, Both>(p)};
  const Grid grid = line(ceil_div((p.outputs * plan.parts) << plan.log_lanes, kAnyThreads));
  return with_range(sum.range(),
                    [&](auto range) { return start_kernel(queue, grid, kAnyThreads, 0, exact_any<decltype(range)>, args); });
}

template <class Range>
cudaError_t join_parts(int64_t parts, const ExactResult& result, const Dims& kept, Queue queue) {
  constexpr int kThreads = kJoinSlots<Range> * kExactWords<Range>, kLogSlots = kLogJoinSlots<Range>;
  const int log_members = log2_of_wanted(ceil_div(parts, 8), kLogSlots);  // each thread adds about eight parts
  const ExactJoin args{result.partials, parts, kLogSlots - log_members, result, kept};
  return start_kernel(queue, line(ceil_div(result.outputs, int64_t{1} << args.log_outputs)), kThreads, 0, exact_join<Range>,
                      args);
}

}  // namespace

int64_t exact_workspace(const ExactSum& given, const Device& device) {
  const ExactSum sum = given.ordered();
  const int64_t parts = plan_of(sum, device).parts;
  return parts > 1 ? sum.problem.outputs * parts * words_of(sum.range()) * static_cast<int64_t>(sizeof(int64_t)) : 0;
}

cudaError_t run_exact(const ExactSum& given, void* workspace, const Device& device, cudaStream_t stream) {
  const ExactSum sum = given.ordered();
  const Problem& p = sum.problem;
  const ExactPlan plan = plan_of(sum, device);
  const Queue queue{stream, device.early};
  const bool streams = p.outputs * p.length * info(sum.in).size > device.l2_bytes / 4;
  const ExactResult result{
      sum.output, plan.parts > 1 ? static_cast<int64_t*>(workspace) : nullptr, p.outputs, sum.divisor, sum.out, sum.states,
      sum.root};
  if (cudaError_t error = start(sum, plan, result, streams, queue)) return error;
  if (plan.parts == 1) return cudaSuccess;
  return with_range(sum.range(), [&](auto range) {
    return join_parts<decltype(range)>(plan.parts, result, kept_nest<kFastRank>(p), queue.next());
  });
}

cudaError_t round_exact(const ExactRounding& r, cudaStream_t stream) {
  const ExactRound args{r.states, {r.output, nullptr, r.count, r.divisor, r.out, false, r.root}};
  return with_range(r.range, [&](auto range) {
    return start_kernel(Queue{stream, false}, line(ceil_div(r.count, kAnyThreads)), kAnyThreads, 0,
                        exact_round<decltype(range)>, args);
  });
}

}  // namespace gpureduce::cuda
