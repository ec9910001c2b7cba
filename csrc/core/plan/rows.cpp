#include "rows.h"

#include <algorithm>
#include <sstream>

namespace gpureduce::cuda {

namespace {

bool is_aligned(const RowsCall& call, RowOperandName name) {
  if (!call.operands[name].data) return true;
  uint64_t all = reinterpret_cast<uintptr_t>(call.operands[name].data);
  for (int d = 0; d < call.along.rank; ++d) all |= static_cast<uint64_t>(call.along.dims[d].strides[name]);
  return all % kGranule == 0;
}

// Whether some row of an operand begins at another place within a vector than the same row of `frame`.
bool is_moved(const RowsCall& call, RowOperandName name, RowOperandName frame, int64_t vector) {
  const RowOperand &a = call.operands[name], &b = call.operands[frame];
  if (!a.data) return false;
  const int64_t a_size = info(a.dtype).size, b_size = info(b.dtype).size;
  bool moved = (reinterpret_cast<uintptr_t>(a.data) / a_size - reinterpret_cast<uintptr_t>(b.data) / b_size) % vector != 0;
  for (int d = 0; d < call.along.rank; ++d) {
    const RowDim& dim = call.along.dims[d];
    moved = moved || (dim.strides[name] / a_size - dim.strides[frame] / b_size) % vector != 0;
  }
  return moved;
}

// Whether the kernels of elements t and results r take a call.
bool takes_rows(const RowsCall& call, DType t, DType r) {
  const auto is = [&](RowOperandName name, DType dtype) {
    return !call.operands[name].data || call.operands[name].dtype == dtype;
  };
  for (RowOperandName name : {kRowX, kRowG, kRowWeight, kRowBias, kRowY})
    if (!is_contiguous(call, name)) return false;
  const bool weights = (is(kRowWeight, t) && is(kRowBias, t)) || (is(kRowWeight, DType::Float) && is(kRowBias, DType::Float));
  return is(kRowX, t) && is(kRowG, t) && weights && is(kRowY, r);
}

// Whether kernels are compiled for a call's dtypes (rows/native), and take its layout.
bool has_kernels(const RowsCall& call) {
  using F = RowFunction;
  const F f = call.function;
  const DType t = call.operands[kRowX].dtype, r = result_dtype(call);
  const bool halves = t == DType::Half || t == DType::BFloat16;
  if (!halves && t != DType::Float && t != DType::Double) return false;
  if (call.wide) return !halves && takes_rows(call, DType::Double, DType::Double);
  if (t == r || !halves) {
    if (halves && f == F::quotient) return false;  // losses have no such dtype
    if (t == DType::Float && is_backward(f) && r != DType::Float)
      return (f == F::softmax_backward || f == F::log_softmax_backward) && (r == DType::Half || r == DType::BFloat16) &&
             takes_rows(call, t, r);
    return takes_rows(call, halves ? t : DType::Float, halves ? r : DType::Float);
  }
  return (f == F::softmax || f == F::log_softmax) && r == DType::Float && takes_rows(call, t, r);
}

int64_t power_of_two(int64_t least) {
  int64_t n = 1;
  while (n < least) n *= 2;
  return n;
}

constexpr int kFullThreads = 1024;  // of a multiprocessor, whose loads keep its memory busy

RowsPlan plan_any_rows(const RowsCall& call) {
  RowsPlan plan{RowsKernel::any};
  plan.threads = static_cast<int>(std::min<int64_t>(power_of_two(call.length), kAnyRowThreads));
  plan.block_rows = std::max(1, 128 / plan.threads);
  plan.blocks = ceil_div(call.rows, plan.block_rows);
  return plan;
}

// `places`: what a row takes up, and where it may begin within a vector, the places before it.
RowsKernel held_rows(int64_t places, int64_t vector) {
  return places <= kWarp * vector ? RowsKernel::warp
         : places <= 2 * kLanes   ? RowsKernel::pairs
         : places <= 4 * kLanes   ? RowsKernel::quads
                                  : RowsKernel::chunks;
}

std::string count(int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string rows_of(const RowsCall& call) {
  return count(call.rows, "row") + " of " + std::to_string(call.length) + " " + info(call.operands[kRowX].dtype).name;
}

// The sums of all rows in a column take up a row of partial sums per unit of lanes.
int64_t units_of(const RowsCall& call) {
  constexpr int kUnitsOfChunk = kLanes / kUnitLanes;
  const int64_t chunks = call.rows / kChunk, rest = call.rows % kChunk;
  return chunks * kUnitsOfChunk + ceil_div(std::min<int64_t>(rest, kLanes), kUnitLanes);
}

constexpr int64_t kLeastNormRow = 64, kMostNormRow = 16384;

NormPlan plan_norm(const RowsCall& input, const RowWeightsCall& weights, const Device& device) {
  const DType t = input.operands[kRowX].dtype;
  const int64_t n = input.length, size = info(t).size;
  const bool centered = has_mean(input.function);
  if (!device.native || !device.early || input.wide || input.along.rank > 1) return {};
  if (t != DType::Float && t != DType::Half && t != DType::BFloat16) return {};
  for (RowOperandName name : {kRowX, kRowG, kRowY}) {
    const bool is_one = name == kRowY || is_contiguous(weights.call, name);
    if (input.operands[name].dtype != t || !is_contiguous(input, name) || !is_one || !is_aligned(input, name)) return {};
  }
  const RowOperand& weight = input.operands[kRowWeight];
  if (weight.data && ((weight.dtype != t && weight.dtype != DType::Float) || !is_contiguous(input, kRowWeight))) return {};
  if (n * size % kGranule != 0 || n < kLeastNormRow || n > kMostNormRow || (!centered && !weights.weight.data)) return {};

  NormPlan plan;
  plan.depth = n <= kLanes ? 1 : n <= 2 * kLanes ? 2 : n <= 4 * kLanes ? 4 : 8;
  plan.vector = n <= 4 * kWarp || plan.depth == 8 ? 4 : 8;
  const int64_t chunks = (n + kChunk - 1) / kChunk, all = n < kLanes ? n / plan.vector : chunks * kLanes / plan.vector;
  plan.threads = kWarp;
  while (plan.threads < all) plan.threads *= 2;
  // Groups share a block, and the weights in its memory, but not where a few lanes of rows would leave multiprocessors idle.
  const int64_t lanes = input.rows / kChunk * kLanes + std::min<int64_t>(input.rows % kChunk, kLanes);
  const int together = norm_blocks(plan.vector * plan.depth);
  const int64_t most = device.shared_bytes / together - kNormStaticBytes, stage = 2 * n * size;
  const auto bytes = [&](int64_t stages) {
    return plan.groups * stages * stage + (1 + plan.groups / 2) * n * static_cast<int64_t>(sizeof(float));
  };
  plan.groups = kNormThreads / plan.threads;
  while (plan.groups > 1 && (bytes(2) > most || lanes / plan.groups < device.multiprocessors)) plan.groups /= 2;
  if (bytes(2) > most) return {};
  plan.stages = 2;
  while (plan.stages < kMostNormStages && bytes(plan.stages + 1) <= most) ++plan.stages;
  plan.shared_bytes = static_cast<int>(bytes(plan.stages));
  plan.units = (lanes + plan.groups - 1) / plan.groups;
  plan.blocks = std::min<int64_t>(plan.units, int64_t{device.multiprocessors} * together);
  plan.streams = 2 * input.rows * n * size > device.l2_bytes / 2;
  return plan;
}

WeightsPlan plan_own_weights(const RowsCall& call, const Device& device) {
  WeightsPlan plan;
  const DType t = call.operands[kRowX].dtype;
  const int64_t size = info(t).size;
  plan.typed = !call.wide && (t == DType::Float || t == DType::Half || t == DType::BFloat16);
  bool whole = call.length % (kGranule / size) == 0, around = true;
  for (RowOperandName name : {kRowX, kRowG}) {
    plan.typed = plan.typed && call.operands[name].dtype == t && is_contiguous(call, name);
    whole = whole && is_aligned(call, name);
    const InputSpan memory = span_of(call, name);
    around =
        around &&
        (reinterpret_cast<uintptr_t>(memory.begin) | reinterpret_cast<uintptr_t>(memory.end)) % (kWeightVector * size) == 0;
  }
  if (plan.typed) plan.loads = whole ? RowLoads::whole : around ? RowLoads::around : RowLoads::each;
  plan.column_blocks = ceil_div(call.length, kWeightColumns * (plan.typed ? kWeightVector : 1));
  plan.units = units_of(call);
  plan.streams = call.rows * call.length * 4 > device.l2_bytes;
  return plan;
}

WeightsJoin plan_join(int64_t length, int64_t units, bool has_second) {
  WeightsJoin join{has_second ? 2 * length : length, units};
  join.side = join.pitch < 4096 ? 8 : kWarp;  // few columns: more blocks
  join.runs = kJoinThreads / join.side;
  while (join.run * join.runs < join.count) join.run *= 2;
  join.blocks = ceil_div(join.pitch, join.side);
  return join;
}

}  // namespace

bool is_contiguous(const RowsCall& call, RowOperandName name) {
  if (!call.operands[name].data || call.across.rank == 0) return true;
  return call.across.rank == 1 && call.across.dims[0].strides[name] == info(call.operands[name].dtype).size;
}

InputSpan span_of(const RowsCall& call, RowOperandName name) {
  const RowOperand& operand = call.operands[name];
  if (!operand.data) return {};
  const char* end = operand.data + info(operand.dtype).size;
  for (const RowDims* dims : {&call.along, &call.across})
    for (int d = 0; d < dims->rank; ++d) end += (dims->dims[d].size - 1) * dims->dims[d].strides[name];
  return {operand.data, end};
}

RowsPlan plan_rows(const RowsCall& call, const Device& device) {
  if (!device.native || !has_kernels(call)) return plan_any_rows(call);
  const RowFunction f = call.function;
  const int64_t n = call.length;
  const int size = info(call.operands[kRowX].dtype).size, most = most_row_threads(f, size);
  const int64_t vector = kGranule / size;
  RowsPlan plan{RowsKernel::any};
  plan.vectors = n % vector == 0;
  for (RowOperandName name : {kRowX, kRowG, kRowWeight, kRowBias, kRowY}) plan.vectors = plan.vectors && is_aligned(call, name);
  const RowOperandName frame = has_result(f) ? kRowY : kRowX;
  plan.x_moved = is_moved(call, kRowX, frame, vector);
  plan.g_moved = is_moved(call, kRowG, frame, vector);

  const int64_t places = plan.vectors ? n : n + vector - 1;
  const RowsKernel held = held_rows(places, vector);
  const RowsTile tile = rows_tile(held, f, size);
  // Threads per chunk, or per row that is shorter. Blocks take runs of chunks, whose number is a power of two, and the last one
  // what is left.
  const int threads =
      static_cast<int>(held == RowsKernel::warp ? power_of_two(ceil_div(places, vector)) : kLanes / vector / tile.groups);
  const int64_t all = ceil_div(n, kChunk) * threads;
  const int most_blocks = device.clusters ? kMaxCluster : 1;
  const bool in_block = all <= most && call.rows >= 2 * device.multiprocessors;  // a block waits for itself alone
  int64_t run = std::min<int64_t>(power_of_two(all), in_block ? most : std::max(threads, kFewRowThreads));
  while (run * most_blocks < all) run *= 2;
  plan.threads = static_cast<int>(std::min<int64_t>(run, most));
  plan.rounds = static_cast<int>(run / plan.threads);
  plan.cluster = static_cast<int>((all + run - 1) / run);
  const bool once = plan.rounds == 1;
  plan.kernel = once ? held : RowsKernel::rounds;
  if (!once && call.sum) return plan_any_rows(call);  // sums of exponentials cut long rows over the whole GPU
  const int64_t bytes = call.rows * n * size * (takes_grad(f) ? 2 : 1);
  plan.streams = once && bytes > device.l2_bytes / 2;
  plan.block_rows = plan.threads > kWarp ? 1 : kFewRowThreads / plan.threads;
  // Several rows at once only where every multiprocessor has threads enough.
  const int64_t full = call.rows * plan.threads / (int64_t{kFullThreads} * device.multiprocessors);
  plan.in_flight = static_cast<int>(std::clamp<int64_t>(full, 1, tile.rows));
  plan.blocks = ceil_div(call.rows, int64_t{plan.block_rows} * plan.in_flight) * plan.cluster;
  return plan.blocks < kMaxGrid ? plan : plan_any_rows(call);
}

QuantizePlan plan_quantize(const QuantizeCall& call, const Device& device) {
  const RowsCall& rows = call.rows;
  const DType t = rows.operands[kRowX].dtype;
  const int64_t n = rows.length, vector = kGranule / info(t).size;
  const bool norm = call.what == Rounded::norm, halves = t == DType::Half || t == DType::BFloat16;
  if (!device.native || (!halves && t != DType::Float) || rows.rows == 0) return {};
  if (n < 1 || n > kMostQuantized || n % vector != 0) return {};
  if (call.block && (call.block < vector || call.block > kWarp * vector)) return {};  // a block lies in one warp
  for (RowOperandName name : {kRowX, kRowG, kRowWeight}) {
    const DType own = rows.operands[name].dtype;
    const bool wide = norm && name != kRowX && own == DType::Float;  // a residual or a weight beside halves
    if (rows.operands[name].data && own != t && !wide) return {};
    if (!is_contiguous(rows, name) || !is_aligned(rows, name)) return {};
  }
  // A chunk's lanes have their threads, or the vectors of a row that is shorter; a row that is not added has a warp, or threads
  // that hold all of it.
  const int64_t vectors = n / vector, of_chunk = kLanes / vector, chunks = (n + kChunk - 1) / kChunk;
  const int64_t needed = norm ? (n > kLanes ? chunks * of_chunk : vectors)
                              : std::max<int64_t>(std::min<int64_t>(vectors, kWarp), ceil_div(vectors, quantize_depth(false)));
  QuantizePlan plan;
  plan.threads = static_cast<int>(power_of_two(needed));
  plan.block_rows = plan.threads > kWarp ? 1 : kFewRowThreads / plan.threads;
  plan.blocks = ceil_div(rows.rows, plan.block_rows);
  plan.streams = rows.rows * n * info(t).size * (rows.operands[kRowG].data ? 2 : 1) > device.l2_bytes / 2;
  return plan.blocks < kMaxGrid ? plan : QuantizePlan();
}

RowWeightsPlan plan_weights(const RowsCall* input, const RowWeightsCall& weights, const Device& device) {
  RowWeightsPlan plan;
  const RowsCall& call = weights.call;
  if (input) plan.norm = plan_norm(*input, weights, device);
  const bool one = plan.is_one_kernel();
  if (!one) plan.weights = plan_own_weights(call, device);
  const int64_t units = one ? plan.norm.units : plan.weights.units;
  const bool has_second = one ? has_mean(input->function) : weights.weight.data && weights.bias.data;
  plan.join = plan_join(call.length, units, has_second);
  plan.workspace_bytes = units * call.length * 2 * (call.wide ? 8 : 4);
  return plan;
}

// --- text -------------------------------------------------------------------------------------------------------------------

static const char* name_of(RowFunction f) {
  constexpr const char* kNames[] = {
#define GPUREDUCE_ROW_FUNCTION(name) #name,
      GPUREDUCE_ROW_FUNCTIONS(GPUREDUCE_ROW_FUNCTION)
#undef GPUREDUCE_ROW_FUNCTION
  };
  return kNames[static_cast<int>(f)];
}

std::string text_of(const RowsCall& call) {
  return std::string(name_of(call.function)) + " of " + rows_of(call) + (call.operands[kRowY].data ? " -> " : "") +
         (call.operands[kRowY].data ? info(call.operands[kRowY].dtype).name : "") + ", computed in " +
         (call.wide ? "float64" : "float32");
}

std::string RowsPlan::str(const RowsCall& call) const {
  constexpr const char* kNames[] = {"warp", "pairs", "quads", "chunks", "rounds", "any"};
  const int size = info(call.operands[kRowX].dtype).size;
  std::ostringstream s;
  s << "kernel rows, " << kNames[static_cast<int>(kernel)] << ": ";
  if (is_compiled()) {
    const RowsTile tile = rows_tile(kernel, call.function, size);
    s << count(kGranule / size, "element") << " per load" << (vectors ? "" : ", at odd addresses") << ", "
      << count(tile.groups * tile.depth, "load") << " per thread";
    if (rounds > 1) s << " in " << rounds << " rounds, each read again for each step";
    if (in_flight > 1) s << ", " << in_flight << " rows at once";
    if (streams) s << ", streamed through the L2";
  } else {
    s << "elements one by one, read again for each step";
  }
  s << "\nblock: " << count(block_threads(), "thread") << ", " << count(block_rows * in_flight, "row") << "; grid " << blocks;
  if (cluster > 1) s << ", " << cluster << " blocks per row as a cluster";
  int64_t elements = call.operands[kRowX].data ? size : 0;
  for (RowOperandName name : {kRowG, kRowY})
    if (call.operands[name].data) elements += info(call.operands[name].dtype).size;
  s << "\nmust move: " << call.rows * call.length * elements << " bytes";
  return s.str();
}

std::string text_of(const QuantizeCall& call) {
  const std::string of = call.what == Rounded::silu ? " of silu * y" : call.what == Rounded::norm ? " of rms_norm" : "";
  const std::string scale = call.block ? std::to_string(call.block) + " elements" : "row";
  return "quantize" + of + ": " + rows_of(call.rows) + " -> " + info(call.dtype).name + ", a scale per " + scale;
}

std::string QuantizePlan::str(const QuantizeCall& call) const {
  const RowOperand &x = call.rows.operands[kRowX], &g = call.rows.operands[kRowG];
  const int64_t size = info(x.dtype).size, other = g.data ? info(g.dtype).size * (call.sum ? 2 : 1) : 0;
  std::ostringstream s;
  s << "kernel quantize: " << count(kGranule / size, "element") << " per load, up to "
    << quantize_depth(call.what == Rounded::norm) << " loads per thread" << (streams ? ", streamed through the L2" : "")
    << "\nblock: " << count(block_threads(), "thread") << ", " << count(block_rows, "row") << "; grid " << blocks
    << "\nmust move: " << call.rows.rows * (call.rows.length * (size + 1 + other) + call.blocks() * (call.powers ? 1 : 4))
    << " bytes";
  return s.str();
}

std::string explain_steps(const char* name, int64_t n) {
  const Grid grid = plan_steps(n);
  return std::string("kernel ") + name + ": block: " + count(kStepThreads, "thread") + "; grid " +
         std::to_string(grid.blocks());
}

std::string RowWeightsPlan::str(const RowWeightsCall& call) const {
  const int size = info(call.call.operands[kRowX].dtype).size;
  std::ostringstream s;
  if (is_one_kernel()) {
    s << "kernel norm_backward, which gives the input's gradient, too: " << norm.vector << " elements side by side, "
      << norm.depth << " times" << (norm.streams ? ", streamed through the L2" : "")
      << "\nblock: " << norm.groups * norm.threads << " threads, " << norm.groups << (norm.groups == 1 ? " row" : " rows")
      << " at a time, " << norm.stages << " of each in " << norm.shared_bytes << " bytes of shared memory; grid "
      << norm.blocks;
  } else {
    constexpr const char* kLoadNames[] = {"in whole vectors", "in vectors around them", "one by one"};
    s << "kernel weights: " << count(weights.typed ? kWeightVector : 1, "element") << " of a row per thread, "
      << kLoadNames[static_cast<int>(weights.loads)] << (weights.streams ? ", streamed through the L2" : "")
      << "\nblock: " << kWeightColumns * kWeightGroups << " threads, " << kUnitLanes << " lanes of rows; grid "
      << weights.column_blocks << " x " << weights.units;
  }
  s << "\nkernel join_weights: " << join.count << " rows of " << join.pitch << " partial sums\nblock: " << kJoinThreads
    << " threads, " << join.side << " columns, " << join.runs << (join.runs == 1 ? " run" : " runs") << " of "
    << count(join.run, "row") << "; grid " << join.blocks << "\nworkspace: " << workspace_bytes << " bytes; must move: "
    << call.call.rows * call.call.length * size *
           (is_one_kernel()    ? 3
            : call.weight.data ? 2
                               : 1)
    << " bytes";
  return s.str();
}

}  // namespace gpureduce::cuda
