// Exact sums: which kernel takes a problem, and how it is cut.
#include "exact.h"

#include <algorithm>

#include "../plan/gpu.h"
#include "kernels/exact.cuh"
#include "launch.h"

namespace gpureduce::cuda {

namespace {

// Where outputs are too few to fill the GPU, all multiprocessors' blocks of a kernel are resident, this often.
constexpr int kRounds = 2, kAnyBlocks = 16;
constexpr int kLeastTiles = 2;  // of a warp, or of a column's thread, where outputs are cut

enum class Kernel : uint8_t { short_rows, rows, columns, any };

struct ExactPlan {
  Kernel kernel;
  int64_t parts = 1;
  int64_t part_size = 0;  // tiles of rows; otherwise rows of columns, or elements
  int64_t tiles = 0;
  int log_warps = 0, log_width = 0, log_lanes = 0;
  ShortRuns runs{};
};

// Calls f with an element of the dtype, if it has kernels.
template <class F>
cudaError_t with_dtype(DType dtype, F f) {
  switch (dtype) {
    case DType::Float: return f(float{});
    case DType::BFloat16: return f(BFloat16{});
    case DType::Half: return f(Half{});
    case DType::Double: return f(double{});
    default: return kNoKernel;
  }
}

bool has_kernels(DType t) { return t == DType::Float || t == DType::BFloat16 || t == DType::Half || t == DType::Double; }
bool is_wide(DType t) { return t == DType::Double; }
int words_of(DType t) { return is_wide(t) ? kExactWords<exact::WideRange> : kExactWords<exact::NarrowRange>; }

// True if the address and all strides but those of the dims in `but` are multiples of `elements`.
template <class Dims>
bool all_multiples(const Dims& dims, int64_t elements, bool but_last) {
  for (size_t i = 0; i + but_last < dims.size(); ++i)
    if (dims[i].stride % elements != 0) return false;
  return true;
}

int log2_of_wanted(int64_t wanted, int most) { return std::min(log2_up(wanted), most); }

// Cuts `length` into at most `wanted` parts of at least `least` each; gives the parts' length.
int64_t part_of(int64_t length, int64_t wanted, int64_t least) {
  return std::max(ceil_div(length, std::max<int64_t>(wanted, 1)), std::min(least, length));
}

int shift_of(uint64_t divisor) { return divisor & (divisor - 1) ? -1 : log2_up(divisor); }

// True if only exact_round() divides by this.
bool has_long_division(const ExactSum& sum) { return !sum.states && shift_of(sum.divisor) < 0 && sum.divisor >> 32; }

ExactPlan plan_of(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  const int64_t size = info(sum.in).size;
  const auto finish = [](ExactPlan plan, int64_t length) {
    plan.parts = ceil_div(length, plan.part_size);
    return plan;
  };
  const bool columns = has_columns(p), wide = is_wide(sum.in);
  const bool fast = has_kernels(sum.in) && fits_fast_nest(p.kept, p.outputs) && fits_fast_nest(p.reduced, p.length);
  if (fast && !p.reduced.empty() && !columns && p.reduced.back().stride == 1) {
    const int64_t vector = kGranule / size, tile = kWarp * kRowLoads * vector, length = p.reduced.back().size;
    const bool aligned = reinterpret_cast<uintptr_t>(sum.input) % kGranule == 0 && all_multiples(p.kept, vector, false) &&
                         all_multiples(p.reduced, vector, true);
    ExactPlan plan{Kernel::rows};
    plan.runs = {p.length / length, length, 0, 0, aligned && length % vector == 0};
    const int64_t vectors = ceil_div(length, vector);
    const bool is_short = length <= tile;
    if (is_short) {
      plan.runs.log_lanes = static_cast<int8_t>(vectors <= 64 ? std::min(log2_up(vectors), 3) : log2_up(vectors) - 3);
      plan.runs.log_steps = static_cast<int8_t>(log2_up(vectors) - plan.runs.log_lanes);
      if (p.length == length && !has_long_division(sum)) {
        plan.kernel = Kernel::short_rows;
        plan.runs.count = p.outputs;
        plan.part_size = 1;
        return plan;
      }
    }
    const bool packed = length <= tile / 2;  // a tile has several runs
    const int64_t run_tiles = packed ? 0 : ceil_div(length + (aligned ? 0 : vector - 1), tile);
    const int64_t tile_runs = (kRowLoads >> plan.runs.log_steps) * plan.runs.side();
    plan.tiles = packed ? ceil_div(plan.runs.count, tile_runs) : run_tiles * plan.runs.count;
    const int most = wide ? 1 : 2;
    plan.log_warps = log2_of_wanted(plan.tiles / 8, most);
    const int64_t wanted = device.multiprocessors * kRounds * (wide ? kRowResident<double> : kRowResident<float>) / p.outputs;
    if (wanted > 1) plan.log_warps = log2_of_wanted(plan.tiles / kLeastTiles, most);
    plan.part_size = part_of(plan.tiles, wanted, kLeastTiles << plan.log_warps);
    return finish(plan, plan.tiles);
  }
  if (fast && !p.kept.empty() && columns && p.kept.back().stride == 1) {
    const int vector = wide ? kColumnVector<double> : kColumnVector<float>, loads = 128 / (vector * static_cast<int>(size));
    const int64_t width = p.kept.back().size, bytes = vector * size;
    ExactPlan plan{Kernel::columns};
    plan.runs.vectors = width % vector == 0 && reinterpret_cast<uintptr_t>(sum.input) % bytes == 0 &&
                        all_multiples(p.kept, vector, true) && all_multiples(p.reduced, vector, false);
    plan.log_width = log2_of_wanted(ceil_div(width, vector), 5);
    plan.tiles = ceil_div(width, int64_t{vector} << plan.log_width);
    const int threads = wide ? kColumnThreads<double> : kColumnThreads<float>, height = threads >> plan.log_width;
    const int64_t blocks = plan.tiles * (p.outputs / width);
    plan.part_size =
        part_of(p.length, device.multiprocessors * kRounds * kColumnResident / blocks, kLeastTiles * loads * height);
    plan.parts = ceil_div(p.length, plan.part_size);
    if (plan.tiles * plan.parts <= kMaxGrid && p.outputs / width <= kMaxGridDepth * kMaxGridDepth) return plan;
  }
  ExactPlan plan{Kernel::any};
  const int64_t threads = int64_t{device.multiprocessors} * kAnyBlocks * kAnyThreads;
  if (p.outputs < threads) plan.log_lanes = log2_of_wanted(p.length / 4, 5);
  const bool whole = !fits_fast_nest(p.kept, p.outputs);  // the second kernel has no so many dims
  plan.part_size = part_of(p.length, whole ? 1 : threads / (p.outputs << plan.log_lanes), 16 << plan.log_lanes);
  return finish(plan, p.length);
}

Dims nest_of_outer(const Problem& p) {
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

Grid line(int64_t blocks) { return {static_cast<uint32_t>(blocks)}; }

cudaError_t start(const ExactSum& sum, const ExactPlan& plan, const ExactResult& result, const ExactInput& input, Queue queue) {
  const Problem& p = sum.problem;
  switch (plan.kernel) {
    case Kernel::short_rows: {
      const int64_t rows = (kRowLoads >> plan.runs.log_steps) * plan.runs.side();
      const ExactShortRows args{input, plan.runs, static_cast<int8_t>(log2_up(plan.runs.length)), result,
                                kept_nest<kFastRank>(p)};
      return with_dtype(sum.in, [&](auto element) {
        using T = decltype(element);
        constexpr int kThreads = kRowThreads<T>;
        return start_kernel(queue, line(ceil_div(ceil_div(p.outputs, rows), kThreads / kWarp)), kThreads, 0,
                            exact_short_rows<T>, args);
      });
    }
    case Kernel::rows: {
      const int64_t vector = kGranule / info(sum.in).size, tile = kWarp * kRowLoads * vector;
      const bool aligned = reinterpret_cast<uintptr_t>(sum.input) % kGranule == 0 && all_multiples(p.kept, vector, false) &&
                           all_multiples(p.reduced, vector, true);
      const int64_t run_tiles = plan.runs.length <= tile / 2 ? 0 : plan.tiles / plan.runs.count;
      const ExactRows args{input,           plan.runs,
                           aligned,         static_cast<int8_t>(plan.log_warps),
                           plan.tiles,      run_tiles,
                           plan.parts,      plan.part_size,
                           result,          kept_nest<kFastRank>(p),
                           nest_of_outer(p)};
      return with_dtype(sum.in, [&](auto element) {
        using T = decltype(element);
        constexpr int kThreads = kRowThreads<T>;
        const Grid grid{static_cast<uint32_t>(ceil_div(p.outputs << plan.log_warps, kThreads / kWarp)),
                        static_cast<uint32_t>(plan.parts)};
        return start_kernel(queue, grid, kThreads, 0, exact_rows<T>, args);
      });
    }
    case Kernel::columns: {
      const int64_t columns = p.kept.back().size, batches = p.outputs / columns;
      const ExactColumns args{input,
                              columns,
                              p.length,
                              plan.parts,
                              plan.part_size,
                              static_cast<uint32_t>(plan.tiles),
                              static_cast<int8_t>(plan.log_width),
                              plan.runs.vectors,
                              result,
                              p.kept.back().out_stride,
                              nest_of_batches(p),
                              reduced_nest<kFastRank>(p)};
      const int64_t depth = std::min(batches, kMaxGridDepth);
      const Grid grid{static_cast<uint32_t>(plan.tiles * plan.parts), static_cast<uint32_t>(depth),
                      static_cast<uint32_t>(ceil_div(batches, depth))};
      return with_dtype(sum.in, [&](auto element) {
        using T = decltype(element);
        return start_kernel(queue, grid, kColumnThreads<T>, 0, exact_columns<T>, args);
      });
    }
    case Kernel::any: break;
  }
  const ExactAny args{input,
                      sum.in,
                      static_cast<int8_t>(plan.log_lanes),
                      p.length,
                      plan.parts,
                      plan.part_size,
                      result,
                      kept_nest<kMaxRank>(p),
                      reduced_nest<kMaxRank>(p)};
  const auto kernel = is_wide(sum.in) ? exact_any<exact::WideRange> : exact_any<exact::NarrowRange>;
  return start_kernel(queue, line(ceil_div((p.outputs * plan.parts) << plan.log_lanes, kAnyThreads)), kAnyThreads, 0, kernel,
                      args);
}

template <class Range>
cudaError_t join_parts(int64_t parts, const ExactResult& result, const Dims& kept, Queue queue) {
  constexpr int kThreads = kJoinSlots<Range> * kExactWords<Range>, kLogSlots = kJoinSlots<Range> == 32 ? 5 : 3;
  const int log_members = log2_of_wanted(ceil_div(parts, 8), kLogSlots);  // a thread adds about eight parts
  const ExactJoin args{result.partials, parts, kLogSlots - log_members, result, kept};
  return start_kernel(queue, line(ceil_div(result.outputs, int64_t{1} << args.log_outputs)), kThreads, 0, exact_join<Range>,
                      args);
}

cudaError_t round(bool wide, const int64_t* states, const ExactResult& result, const Nest<kMaxRank>& kept, Queue queue) {
  const auto kernel = wide ? exact_round<exact::WideRange> : exact_round<exact::NarrowRange>;
  return start_kernel(queue, line(ceil_div(result.outputs, kAnyThreads)), kAnyThreads, 0, kernel,
                      ExactRound{states, result, kept});
}

// The outputs one after the other.
template <int kRank>
Nest<kRank> line_of(int64_t outputs) {
  Nest<kRank> nest;
  nest.narrow = outputs < int64_t{1} << 31;
  nest.add(outputs, 0, 1);
  return nest;
}

ExactResult result_of(void* output, DType dtype, bool states, uint64_t divisor, int64_t outputs) {
  return {output, nullptr, outputs, divisor, static_cast<int8_t>(shift_of(divisor)), dtype, states};
}

// What a call puts into its workspace: the parts' sums, then states, if the second kernel cannot divide.
struct Workspace {
  int64_t partials, states;  // int64s

  Workspace(const ExactSum& sum, const ExactPlan& plan) {
    const bool divides = plan.kernel != Kernel::any && has_long_division(sum), joined = plan.parts > 1 || divides;
    partials = joined ? sum.problem.outputs * plan.parts * words_of(sum.in) : 0;
    states = joined && has_long_division(sum) ? sum.problem.outputs * (words_of(sum.in) + 1) : 0;
  }
};

}  // namespace

int64_t exact_workspace(const ExactSum& sum, const Device& device) {
  const Workspace workspace(sum, plan_of(sum, device));
  return (workspace.partials + workspace.states) * static_cast<int64_t>(sizeof(int64_t));
}

cudaError_t run_exact(const ExactSum& sum, void* workspace, const Device& device, cudaStream_t stream) {
  const Problem& p = sum.problem;
  const ExactPlan plan = plan_of(sum, device);
  const Workspace room(sum, plan);
  const Queue queue{stream, device.early};
  const bool streams = p.outputs * p.length * info(sum.in).size > device.l2_bytes / 4, wide = is_wide(sum.in);
  const ExactInput input{sum.input, l2_policy(streams), {sum.negate, sum.nan_is_zero}};
  const ExactResult final = result_of(sum.output, sum.out, sum.states, sum.divisor, p.outputs);
  ExactResult result = final;
  if (room.partials > 0) result.partials = static_cast<int64_t*>(workspace);
  if (cudaError_t error = start(sum, plan, result, input, queue)) return error;
  if (room.partials == 0) return cudaSuccess;
  int64_t* const states = result.partials + room.partials;
  Dims kept = line_of<kFastRank>(p.outputs);
  if (room.states > 0) {
    result = result_of(states, sum.out, true, 1, p.outputs);
    result.partials = static_cast<int64_t*>(workspace);
  } else {
    kept = kept_nest<kFastRank>(p);
  }
  const auto join = wide ? join_parts<exact::WideRange> : join_parts<exact::NarrowRange>;
  if (cudaError_t error = join(plan.parts, result, kept, queue.next())) return error;
  return room.states > 0 ? round(wide, states, final, kept_nest<kMaxRank>(p), queue.next()) : cudaSuccess;
}

cudaError_t round_exact(const ExactRounding& r, cudaStream_t stream) {
  return round(r.wide, r.states, result_of(r.output, r.out, false, r.divisor, r.count), line_of<kMaxRank>(r.count),
               {stream, false});
}

}  // namespace gpureduce::cuda
