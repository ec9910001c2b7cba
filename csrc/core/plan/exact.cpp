#include "exact.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "../problem/nest.h"

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
int size_of(const ExactSum& sum) { return has_products(sum) ? sizeof(double) : info(sum.in).size; }

int words_of(ExactRange range) {
  return with_range(range, [](auto r) { return exact_words(decltype(r)::kDigits); });
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

uint32_t blocks_of(int64_t warps, int threads) { return static_cast<uint32_t>(ceil_div(warps, threads / kWarp)); }

// Rows: the last reduced dim is a run of neighbours. Short ones are outputs of their own, or several are in a tile.
ExactPlan plan_rows(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  const int size = size_of(sum);
  const int64_t vector = kGranule / size, tile = kWarp * kExactRowLoads * vector, length = p.reduced.back().size;
  ExactPlan plan{Kernel::rows};
  plan.threads = exact_threads(size);
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
      const int64_t rows = (kExactRowLoads >> plan.runs.log_steps) * plan.runs.side();
      plan.grid.x = blocks_of(ceil_div(p.outputs, rows), plan.threads);
      return plan;
    }
  }
  if (length <= tile / 2) {
    plan.tiles = ceil_div(plan.runs.count, (kExactRowLoads >> plan.runs.log_steps) * plan.runs.side());
  } else {
    plan.tiles_of_run = ceil_div(length + (plan.aligned || has_products(sum) ? 0 : vector - 1), tile);
    plan.tiles = plan.tiles_of_run * plan.runs.count;
  }
  const int most = size == 8 ? 1 : 2;
  const int64_t wanted = device.multiprocessors * kRounds * exact_resident(size) / p.outputs;
  plan.log_warps = log2_of_wanted(plan.tiles / (wanted > 1 ? kLeastTiles : 8), most);
  plan.part_size = part_of(plan.tiles, wanted, kLeastTiles << plan.log_warps);
  plan.parts = ceil_div(plan.tiles, plan.part_size);
  plan.grid = {blocks_of(p.outputs << plan.log_warps, plan.threads), static_cast<uint32_t>(plan.parts)};
  return plan;
}

ExactPlan plan_columns(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  const int size = size_of(sum);
  const int64_t vector = exact_column_vector(size), loads = exact_column_loads(size), width = p.kept.back().size;
  ExactPlan plan{Kernel::columns};
  plan.threads = exact_threads(size);
  plan.repeats = has_products(sum) && p.kept.back().second == 0;
  plan.aligned = width % vector == 0 && begin_aligned(sum, vector) && are_multiples(p.kept, vector, true) &&
                 are_multiples(p.reduced, vector, false);
  plan.log_width = log2_of_wanted(ceil_div(width, vector), 5);
  plan.tiles = ceil_div(width, vector << plan.log_width);
  const int height = plan.threads >> plan.log_width;
  const int64_t batches = p.outputs / width, depth = std::min(batches, kMaxGridDepth);
  const int64_t resident = device.multiprocessors * exact_resident(size);
  plan.part_size = part_of(p.length, kRounds * resident / (plan.tiles * batches), kLeastTiles * loads * height);
  plan.parts = ceil_div(p.length, plan.part_size);
  plan.grid = {static_cast<uint32_t>(plan.tiles * plan.parts), static_cast<uint32_t>(depth),
               static_cast<uint32_t>(ceil_div(batches, depth))};
  return plan;
}

ExactPlan plan_any(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  ExactPlan plan{Kernel::any};
  plan.threads = kExactAnyThreads;
  const int64_t threads = int64_t{device.multiprocessors} * kAnyBlocks * kExactAnyThreads;
  if (p.outputs < threads) plan.log_lanes = log2_of_wanted(p.length / 4, 5);
  const bool cut = fits_fast_nest(p.kept, p.outputs);  // the kernel that joins parts has no more dims
  plan.part_size = part_of(p.length, cut ? threads / (p.outputs << plan.log_lanes) : 1, 16 << plan.log_lanes);
  plan.parts = ceil_div(p.length, plan.part_size);
  plan.grid.x = static_cast<uint32_t>(ceil_div((p.outputs * plan.parts) << plan.log_lanes, kExactAnyThreads));
  return plan;
}

// True if one stride walks neighbours of both inputs; the second one may have the same element for all of them.
template <class Dim>
bool is_run(const ExactSum& sum, const Dim& dim) {
  return dim.stride == 1 && (!has_products(sum) || dim.second == 1 || dim.second == 0);
}

ExactPlan plan_kernel(const ExactSum& sum, const Device& device) {
  const Problem& p = sum.problem;
  const bool columns = has_columns(p);
  const bool fits = p.outputs < int64_t{1} << 31;  // grids
  if (fits && device.native && has_kernels(sum) && fits_fast_nest(p.kept, p.outputs) && fits_fast_nest(p.reduced, p.length)) {
    if (!columns && !p.reduced.empty() && is_run(sum, p.reduced.back())) return plan_rows(sum, device);
    if (columns && is_run(sum, p.kept.back())) {
      const ExactPlan plan = plan_columns(sum, device);
      if (plan.tiles * plan.parts <= kMaxGrid && p.outputs / p.kept.back().size <= kMaxGridDepth * kMaxGridDepth) return plan;
    }
  }
  return plan_any(sum, device);
}

std::string count(int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string text_of(const Grid& g) { return std::to_string(g.x) + " x " + std::to_string(g.y) + " x " + std::to_string(g.z); }

}  // namespace

ExactPlan plan_exact(const ExactSum& given, const Device& device) {
  const ExactSum sum = given.ordered();
  const Problem& p = sum.problem;
  ExactPlan plan = plan_kernel(sum, device);
  plan.streams = p.outputs * p.length * info(sum.in).size > device.l2_bytes / 4;
  if (plan.parts == 1) return plan;
  const int words = words_of(sum.range()), log_slots = exact_log_join_slots(words);
  plan.log_members = log2_of_wanted(ceil_div(plan.parts, 8), log_slots);  // each thread adds about eight parts
  plan.join_threads = words << log_slots;
  plan.join_blocks = ceil_div(p.outputs, int64_t{1} << (log_slots - plan.log_members));
  plan.workspace_bytes = p.outputs * plan.parts * words * static_cast<int64_t>(sizeof(int64_t));
  return plan;
}

std::string text_of(const ExactSum& given) {
  const ExactSum sum = given.ordered();
  constexpr const char* kAddends[] = {"", ", squared", ""};
  std::string text = std::string("exact sum of ") + info(sum.in).name + kAddends[static_cast<int>(sum.addends)];
  if (sum.addends == ExactAddends::products) text += std::string(" * ") + info(sum.second_dtype).name;
  return text + (sum.states ? ", as states" : std::string(" -> ") + info(sum.out).name) + "\n" + sum.problem.str();
}

std::string ExactPlan::str(const ExactSum& given) const {
  const ExactSum sum = given.ordered();
  constexpr const char* kNames[] = {"short_rows", "rows", "columns", "any"};
  const Problem& p = sum.problem;
  std::ostringstream s;
  s << "kernel exact_" << kNames[static_cast<int>(kernel)] << ": ";
  switch (kernel) {
    case Kernel::short_rows:
      s << count(1 << runs.log_lanes, "thread") << " per row, " << count(1 << runs.log_steps, "vector") << " of each"
        << (runs.vectors ? "" : ", loaded one by one");
      break;
    case Kernel::rows:
      s << count(1 << log_warps, "warp") << " per part of " << count(part_size, "tile") << " of a row"
        << (aligned ? "" : ", at odd addresses");
      break;
    case Kernel::columns:
      s << (1 << log_width) << " threads side by side, each " << count(exact_column_vector(size_of(sum)), "column")
        << (aligned ? "" : ", loaded one by one") << ", a part of " << count(part_size, "row");
      break;
    default: s << count(1 << log_lanes, "thread") << " a part of " << count(part_size, "element") << ", converted one by one";
  }
  s << (streams ? ", streamed through the L2" : "") << "\nblock: " << count(threads, "thread") << "; grid " << text_of(grid)
    << "; " << count(parts, "part") << " of each output";
  if (parts > 1)
    s << "\nkernel exact_join: " << count(1 << log_members, "thread") << " of each word of an output\nblock: " << join_threads
      << " threads; grid " << join_blocks;
  int64_t bytes = p.outputs * p.length * info(sum.in).size;
  if (sum.addends == ExactAddends::products) bytes += p.outputs * p.length * info(sum.second_dtype).size;
  s << "\nworkspace: " << workspace_bytes << " bytes; must move, at most: " << bytes << " bytes";
  return s.str();
}

// --- segments ---------------------------------------------------------------------------------------------------------------

namespace {

constexpr int kWarpsOfEach = 64;                  // warps per multiprocessor that should have a tile
constexpr int64_t kSlotBytes = int64_t{1} << 24;  // of all slots, unless a quarter of the data is more

// The logarithms of a tile's rows: the most for one column, the fewest of these if there are many columns, and the least.
constexpr int kLogTile = 12, kLogManyColumns = 10, kLeastLogTile = 6;

int64_t bytes_of_slots(const Segments& s, int64_t slots) {
  const ExactRange range = exact_range(ExactAddends::elements, s.reduction.in, s.reduction.in);
  return slots * s.reduction.problem.outputs * words_of(range) * static_cast<int64_t>(sizeof(int64_t));
}

// True if the elements of a row lie closer together than rows do.
bool are_columns(const Segments& s) {
  const Problem& p = s.reduction.problem;
  if (p.kept.empty()) return false;
  const int64_t across = std::abs(p.kept.back().stride);
  return across != 0 && (s.stride == 0 || across < std::abs(s.stride));
}

}  // namespace

ExactSegmentPlan plan_exact_segments(const Segments& s, const Device& device) {
  const Reduction& r = s.reduction;
  const int64_t columns = r.problem.outputs, bytes = columns * s.length * info(r.in).size;
  const bool wide = r.in == DType::Double;
  ExactSegmentPlan plan{};
  plan.compiled = device.native && (is_narrow(r.in) || wide) && fits_fast_nest(r.problem.kept, r.problem.outputs);
  plan.threads = plan.compiled ? exact_threads(info(r.in).size) : kExactAnyThreads;
  plan.log_width = are_columns(s) ? std::min(5, log2_up(columns)) : 0;
  plan.column_tiles = ceil_div(columns, int64_t{1} << plan.log_width);
  plan.slot_column_tiles = ceil_div(columns, kWarp);
  plan.streams = bytes > device.l2_bytes / 4;
  const auto tiles = [&] { return ((s.length + s.count * kExactSegmentWeight) >> plan.log_tile) + 1; };
  plan.log_tile = std::min(exact_most_log_tile(wide ? 8 : 4), std::max(kLogTile + 1 - plan.log_width, kLogManyColumns));
  const int least = std::max(kLeastLogTile, 8 - plan.log_width);
  const auto has_few_warps = [&] { return tiles() * plan.column_tiles < int64_t{kWarpsOfEach} * device.multiprocessors; };
  const auto slots = [&](int log_tile) { return s.length >> log_tile > 0 ? (s.length >> log_tile) + 1 : 0; };
  const auto has_room = [&] { return bytes_of_slots(s, slots(plan.log_tile - 1)) <= std::max(bytes / 4, kSlotBytes); };
  while (plan.log_tile > least && has_few_warps() && has_room()) --plan.log_tile;
  plan.tiles = tiles();
  plan.slots = slots(plan.log_tile);
  plan.workspace_bytes = bytes_of_slots(s, plan.slots);
  return plan;
}

std::string ExactSegmentPlan::str(const Segments& s) const {
  const int warps = threads / kWarp;
  std::ostringstream out;
  const auto slot_kernel = [&](const char* what) {
    out << "kernel exact_segment_slots, which " << what << ": a warp a slot and 32 columns\nblock: " << kExactAnyThreads
        << " threads; grid " << ceil_div(slots * slot_column_tiles, kExactAnyThreads / kWarp);
  };
  if (slots) {
    slot_kernel("clears the numbers of cut segments");
    out << "\n";
  }
  out << "kernel exact_segments" << (compiled ? "" : "_any") << ": a warp per tile of " << (int64_t{1} << log_tile)
      << " positions, " << count(1 << log_width, "column") << " side by side" << (streams ? ", streamed through the L2" : "")
      << "\nblock: " << count(threads, "thread") << "; grid " << ceil_div(tiles * column_tiles, warps) << "\n";
  if (slots) {
    slot_kernel("rounds them");
    out << "\n";
  }
  out << "workspace: " << workspace_bytes
      << " bytes; must move: " << s.reduction.problem.outputs * s.length * info(s.reduction.in).size << " bytes";
  return out.str();
}

}  // namespace gpureduce::cuda
