#include "plan.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace gpureduce {

namespace {

// --- tuning constants, with what they gain on an H200 (bench/tune.py measures others) --------------------------------------
constexpr int kVectorBytes = 16;  // the widest load
constexpr int kWarps = 8;         // warps a block
// Up to this many units one block does it all, without a join: 2^14 float32 3.1 us instead of 3.8.
constexpr int kOneBlockUnits = 16;
// A tile grows to this many units a warp while there are still so many tiles a multiprocessor: 2^26 bfloat16 36 us instead of
// 39 with one unit a warp, 2^24 float32 18.6 instead of 19.6.
constexpr int kWarpUnits = 16;
constexpr int kTilesPerProcessor = 3;
// Rows of few units go to small blocks, which wait less for one another: rows (16384, 4096) bfloat16 35 us instead of 38.
constexpr int kShortRowUnits = 8;
constexpr int kShortRowWarps = 2;
// Rows at odd addresses are read in shifted vectors from this length on, by blocks of four warps: rows (4096, 50257) float32
// 203 us instead of 268 with single elements, full 2^26 at offset 1 69 instead of 89.
constexpr int kShiftedLength = 1024;
constexpr int kShiftedWarps = 4;
// Batches of leaves a thread of the columns kernel takes: (16384, 4096) float32 67 us instead of 74 with one.
constexpr int kColumnBatches = 4;
// Shared memory that a block of a ring kernel takes, and the stages of a warp's ring.
constexpr int kRingBytes = 108 * 1024;
constexpr int kRingBlocks = 2;  // a multiprocessor
constexpr int kRingStages = 3;  // but two where a warp takes many stages of short rows: rows (2^19, 128) 68 us, not 69
constexpr int kRingStageBytes =
    8192;  // of several short rows; half of it up to this many bytes: rows (2^20, 8) 12.4 us, not 14
constexpr int kSmallRowBytes = 64;
constexpr int kShortRowWords = 256;
constexpr int kRingTiles = 4;       // tiles a warp, at least, before tiles grow
constexpr int kMinCopyBytes = 256;  // that a copy is worth
constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
// --------------------------------------------------------------------------------------------------------------------------

constexpr const char* kKernelNames[] = {"packed", "rows", "thin", "columns", "ring_rows"};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t power_of_two_above(int64_t x) {
  int64_t p = 1;
  while (p < x) p *= 2;
  return p;
}

int64_t bytes_moved(const Problem& p, int64_t in_size, int64_t out_size) {
  int64_t elements = 1;  // an expanded dim is read once
  for (const KeptDim& d : p.kept) elements *= d.stride ? d.size : 1;
  for (const ReducedDim& d : p.reduced) elements *= d.stride ? d.size : 1;
  return elements * in_size + p.outputs * out_size;
}

// Whether the fastest dim in memory is a kept one, so that neighbouring threads should own neighbouring outputs.
bool columnwise(const Problem& p) {
  if (p.reduced.empty()) return true;
  if (p.kept.empty() || p.kept.back().stride == 0) return false;
  return p.reduced.back().stride == 0 || p.kept.back().stride < p.reduced.back().stride;
}

// Elements a load may take: 1, or a full vector where the fastest dim is dense and every place a vector may start is aligned.
int vector_width(const Problem& p, bool by_columns, int size, const void* address) {
  const int vector = std::max(1, kVectorBytes / size);
  if (reinterpret_cast<uintptr_t>(address) % (vector * size) != 0) return 1;
  const int64_t stride = by_columns ? (p.kept.empty() ? 0 : p.kept.back().stride) : p.reduced.back().stride;
  if (stride != 1) return 1;
  const size_t skip_kept = by_columns, skip_reduced = !by_columns;
  for (size_t d = 0; d + skip_kept < p.kept.size(); ++d)
    if (p.kept[d].stride % vector != 0) return 1;
  for (size_t d = 0; d + skip_reduced < p.reduced.size(); ++d)
    if (p.reduced[d].stride % vector != 0) return 1;
  const bool whole = by_columns || p.reduced.size() > 1;  // vectors must not reach over the end of the dim
  const int64_t last = by_columns ? p.kept.back().size : p.reduced.back().size;
  return whole && last % vector != 0 ? 1 : vector;
}

// Whether vectors can be put together from aligned ones, where they do not lie at aligned addresses themselves.
bool can_shift(const Reduction& r, bool by_columns) {
  const Problem& p = r.problem;
  if (!is_typed(r) || p.reduced.size() != 1 || info(r.in).size >= kVectorBytes) return false;
  if (by_columns) return !p.kept.empty() && p.kept.back().stride == 1 && p.kept.back().size > 1 && p.length > 2 * kLanes;
  return p.reduced.back().stride == 1 && p.length >= kShiftedLength;
}

void plan_packed(Plan& plan, const Problem& p) {
  Tiling& t = plan.tiling;
  plan.warp_columns = static_cast<int>(power_of_two_above(ceil_div(p.length, plan.vector)));
  t.tile_leaves = plan.warp_columns * plan.vector;
  const int warp_rows = kLoads * (kWarp / plan.warp_columns);
  if (!plan.warps) plan.warps = static_cast<int>(std::min<int64_t>(kWarps, power_of_two_above(ceil_div(p.outputs, warp_rows))));
  t.tile_outputs = plan.warps * warp_rows;
  t.columns = t.tile_outputs;
  t.column_tiles = t.splits = 1;
}

void plan_rows(Plan& plan, const Problem& p, const Device& device, const Tuning& tuning) {
  Tiling& t = plan.tiling;
  plan.thread_elements = p.length <= 2 * kLanes && plan.vector > 1 && !plan.nested && !plan.shifted ? 2 : kDepth;
  const int unit_leaves = kWarp * plan.vector * row_groups(plan.vector, plan.thread_elements);
  const int64_t row_units = ceil_div(t.leaves, unit_leaves), row_slots = power_of_two_above(row_units);
  const int64_t units = p.outputs * row_units;
  const int warps = plan.shifted ? kShiftedWarps : kWarps;
  int64_t tile_units;
  if (tuning.tile_leaves) {
    tile_units = power_of_two_above(ceil_div(tuning.tile_leaves, unit_leaves));
  } else if (p.outputs * row_slots <= kOneBlockUnits) {
    tile_units = power_of_two_above(p.outputs) * row_slots;
    if (!plan.warps) plan.warps = static_cast<int>(std::min<int64_t>(kMaxRowWarps, tile_units));
  } else {
    tile_units = warps;
    while (tile_units < kWarpUnits * warps && units / (2 * tile_units) >= int64_t{kTilesPerProcessor} * device.multiprocessors)
      tile_units *= 2;
    const bool rows_enough = p.outputs >= int64_t{kTilesPerProcessor} * device.multiprocessors;
    // A whole row a block needs no join, and is as good where there are rows enough.
    if (rows_enough && row_slots <= kWarp * kWarps) tile_units = std::max(tile_units, row_slots);
    if (rows_enough && row_slots <= kShortRowUnits) {
      tile_units = kShortRowUnits;
      if (!plan.warps && !plan.shifted) plan.warps = kShortRowWarps;
    }
  }
  if (!plan.warps) plan.warps = static_cast<int>(std::min<int64_t>(warps, tile_units));
  tile_units = std::min<int64_t>(tile_units, int64_t{kWarp} * plan.warps);  // one thread a unit joins them
  if (row_slots <= tile_units) {
    t.tile_outputs = static_cast<int>(tile_units / row_slots);
    t.tile_leaves = static_cast<int>(row_slots * unit_leaves);
  } else {
    t.tile_outputs = 1;
    t.tile_leaves = static_cast<int>(tile_units * unit_leaves);
  }
  t.columns = t.tile_outputs;
  t.column_tiles = 1;
  t.splits = static_cast<uint32_t>(ceil_div(t.leaves, t.tile_leaves));
  t.partial_output_stride = t.splits;  // a row's partial sums side by side
  t.partial_split_stride = 1;
}

// Whether rows are best copied as they stand in memory, with what lies between them.
bool rows_as_they_stand(const Problem& p) { return p.kept.empty() || 4 * p.kept.back().stride <= 5 * p.length; }

// Words of a row, as ShortRows reads them; and whether rows are short enough for it to join several at a time.
int64_t row_words(const Problem& p, int size) { return ceil_div(p.length, std::max(1, 4 / size)); }
bool is_short(const Problem& p, int size) {
  return p.length <= kLanes && row_words(p, size) <= kShortRowWords && p.reduced.size() == 1 && rows_as_they_stand(p);
}

// Whether bulk copies can bring the rows. `vector` is what vector_width() allows.
bool ring_takes_rows(const Reduction& r, const Device& device, int vector) {
  const Problem& p = r.problem;
  const int size = info(r.in).size;
  if (!device.bulk_copies || !is_typed(r) || size > 8 || p.reduced.back().stride != 1) return false;
  if (p.outputs >= kMaxGrid) return false;
  if (p.reduced.size() > 1)  // pieces of runs: one a lane, all of them whole granules
    return p.length < kMaxGrid && vector * size == kGranule && kChunk / p.reduced.back().size + 2 <= kWarp;
  return p.length * size >= kMinCopyBytes || rows_as_they_stand(p);
}

// Whether that is faster than to load them.
bool ring_suits_rows(const Problem& p, int size, int vector) {
  if (is_short(p, size)) return true;
  return vector == 1 && p.reduced.size() == 1 && (size >= 4 || p.length < kShiftedLength);
}

void plan_ring_rows(Plan& plan, const Reduction& r, const Device& device, const Tuning& tuning, int vector) {
  const Problem& p = r.problem;
  const int size = info(r.in).size;
  Tiling& t = plan.tiling;
  RingShape& ring = plan.ring;
  ring.stages = tuning.stages ? tuning.stages : kRingStages;
  const bool chunks = p.length > kChunk;
  int64_t rows = 1, stage_bytes = ceil_div(std::min<int64_t>(p.length, kChunk), kLanes) * kLanes * size;
  plan.read_bytes = vector * size == kGranule ? kGranule : 4;
  plan.shifted = false;
  if (plan.nested) {
    ring.run = static_cast<int>(p.reduced.back().size);
  } else if (!chunks) {
    const int64_t warps = int64_t{device.multiprocessors} * kWarps;
    rows = std::min<int64_t>(kWarp, ceil_div(p.outputs, warps));
    if (is_short(p, size)) {
      const int64_t words = row_words(p, size);
      plan.row_width = static_cast<int>(std::min<int64_t>(kWarp, power_of_two_above(words)));
      plan.row_groups = static_cast<int>(power_of_two_above(ceil_div(words, kWarp)));
      const int64_t pitch = (p.kept.empty() ? 0 : p.kept.back().stride) * size, at_once = kWarp / plan.row_groups;
      ring.pitch = static_cast<int>(pitch);
      const int64_t bytes = size >= 4 && pitch <= kSmallRowBytes ? kRingStageBytes / 2 : kRingStageBytes;
      rows = (tuning.stage_bytes ? tuning.stage_bytes : bytes) / std::max<int64_t>(1, pitch);
      rows = std::min(rows, ceil_div(p.outputs, warps));
      rows = std::max(rows / at_once, int64_t{1}) * at_once;
      stage_bytes = (rows - 1) * pitch + p.length * size;
      if (!tuning.stages && p.outputs / rows >= kRingTiles * kRingBlocks * warps) ring.stages = 2;
    }
  }
  plan.vector = std::max(1, (plan.row_width ? 4 : plan.read_bytes) / size);
  const int64_t slack = plan.nested ? 0 : kLine + kGranule;  // rows may begin anywhere
  ring.stage_bytes = static_cast<int>(ceil_div(stage_bytes + slack, kLine) * kLine);
  if (!plan.warps) plan.warps = kMaxRingPairs;
  while (plan.warps > 1 && plan.warps * ring.stages * ring.stage_bytes > kRingBytes) plan.warps /= 2;

  t.tile_outputs = static_cast<int>(rows);
  t.tile_leaves = kLanes;
  while (!chunks && t.tile_leaves < t.leaves) t.tile_leaves *= 2;
  if (tuning.tile_leaves && chunks) {
    while (t.tile_leaves < std::min(tuning.tile_leaves, kWarp * kLanes)) t.tile_leaves *= 2;
  } else if (chunks) {
    const int64_t wanted = int64_t{kRingTiles} * device.multiprocessors * plan.warps;
    while (t.tile_leaves < kWarp * kLanes && t.tile_leaves < t.leaves &&
           p.outputs * ceil_div(t.leaves, 2 * t.tile_leaves) >= wanted)
      t.tile_leaves *= 2;
  }
  t.columns = p.kept.empty() || rows == 1 ? rows : p.kept.back().size;
  t.column_tiles = static_cast<uint32_t>(ceil_div(t.columns, rows));
  t.splits = static_cast<uint32_t>(ceil_div(t.leaves, t.tile_leaves));
  t.partial_output_stride = t.splits;
  t.partial_split_stride = 1;
}

void plan_thin(Plan& plan, const Problem& p) {
  Tiling& t = plan.tiling;
  if (!plan.warps) plan.warps = kWarps;
  t.tile_outputs = plan.warps * kWarp * plan.vector;
  t.tile_leaves = static_cast<int>(power_of_two_above(t.leaves));
  t.columns = p.outputs;
  t.column_tiles = static_cast<uint32_t>(ceil_div(p.outputs, t.tile_outputs));
  t.splits = 1;
}

void plan_columns(Plan& plan, const Problem& p, const Tuning& tuning) {
  Tiling& t = plan.tiling;
  t.columns = p.kept.back().size;
  plan.warp_columns = static_cast<int>(std::min<int64_t>(kWarp, power_of_two_above(ceil_div(t.columns, plan.vector))));
  // With a full warp side by side every load reads whole lines, so a thread may own a run of leaves. A narrower one does so
  // only when neighbouring threads take neighbouring leaves.
  plan.thread_elements = p.length <= kLanes ? 1 : p.length <= 2 * kLanes ? 2 : kLoads;
  plan.batches = plan.thread_elements == 1 || plan.warp_columns < kWarp / 2 ? 1 : kColumnBatches;
  if (tuning.batches) plan.batches = std::min<int>(power_of_two_above(tuning.batches), kMaxBatches);
  const int unit_leaves = kLoads / plan.thread_elements * plan.batches * (kWarp / plan.warp_columns);
  const int64_t wanted = tuning.tile_leaves ? power_of_two_above(ceil_div(tuning.tile_leaves, unit_leaves)) : kWarps;
  if (!plan.warps) plan.warps = static_cast<int>(std::min(wanted, power_of_two_above(ceil_div(t.leaves, unit_leaves))));
  plan.warps = std::min(plan.warps, kMaxColumnWarps);
  t.tile_outputs = plan.warp_columns * plan.vector;
  t.tile_leaves = plan.warps * unit_leaves;
  t.column_tiles = static_cast<uint32_t>(ceil_div(t.columns, t.tile_outputs));
  t.splits = static_cast<uint32_t>(ceil_div(t.leaves, t.tile_leaves));
  t.partial_output_stride = 1;  // neighbouring columns write neighbouring partial sums
  t.partial_split_stride = p.outputs;
}

}  // namespace

Tuning Tuning::parse(const std::string& text) {
  Tuning tuning;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals), value = equals == std::string::npos ? "" : item.substr(equals + 1);
    if (key == "kernel") {
      const auto* found = std::find(std::begin(kKernelNames), std::end(kKernelNames), value);
      if (found == std::end(kKernelNames)) throw std::invalid_argument("tuning: there is no kernel '" + value + "'");
      tuning.kernel = static_cast<int>(found - std::begin(kKernelNames));
      continue;
    }
    int* field = key == "multiprocessors" ? &tuning.multiprocessors
                 : key == "vector"        ? &tuning.vector
                 : key == "warps"         ? &tuning.warps
                 : key == "tile_leaves"   ? &tuning.tile_leaves
                 : key == "batches"       ? &tuning.batches
                 : key == "grid"          ? &tuning.grid
                 : key == "stages"        ? &tuning.stages
                 : key == "stage_bytes"   ? &tuning.stage_bytes
                                          : nullptr;
    if (!field) throw std::invalid_argument("tuning: there is no key '" + key + "'");
    if (value.empty() || value.size() > 8 || value.find_first_not_of("0123456789") != std::string::npos)
      throw std::invalid_argument("tuning: '" + key + "' needs a number, not '" + value + "'");
    *field = std::stoi(value);
  }
  if (tuning.warps > kWarp || (tuning.warps & (tuning.warps - 1)))
    throw std::invalid_argument("tuning: warps must be a power of two up to 32");
  return tuning;
}

InputSpan input_span(const Reduction& r) {
  int64_t last = 0;
  for (const KeptDim& d : r.problem.kept) last += (d.size - 1) * d.stride;
  for (const ReducedDim& d : r.problem.reduced) last += (d.size - 1) * d.stride;
  const char* begin = static_cast<const char*>(r.input);
  return {begin, begin + (last + 1) * info(r.in).size};
}

bool is_typed(const Reduction& r) {
  const DTypeInfo& i = info(r.in);
  const Problem& p = r.problem;
  const bool plain = r.conversion == Conversion::value && !r.negate && !r.conjugate;
  // The kernels compiled for a dtype find their way with 32-bit divisions.
  const bool near = (p.kept.size() <= 1 || p.outputs <= kMaxGrid) && (p.reduced.size() <= 1 || p.length <= kMaxGrid);
  return plain && near && p.kept.size() <= kFastRank && p.reduced.size() <= kFastRank &&
         (r.accumulator == i.accumulator || r.accumulator == i.wide);
}

Plan make_plan(const Reduction& r, const Device& given, const Tuning& tuning) {
  const Problem& p = r.problem;
  Device device = given;
  if (tuning.multiprocessors) device.multiprocessors = tuning.multiprocessors;
  Plan plan{};
  Tiling& t = plan.tiling;
  t.outputs = p.outputs;
  t.leaves = leaf_count(p.length);
  plan.bytes = bytes_moved(p, info(r.in).size, info(r.out).size);
  plan.nested = p.reduced.size() > 1;

  const bool by_columns = columnwise(p);
  const int size = info(r.in).size;
  const int vector = is_typed(r) ? vector_width(p, by_columns, size, r.input) : 1;
  plan.vector = vector;
  if (vector == 1 && can_shift(r, by_columns)) {
    plan.shifted = true;
    plan.vector = kVectorBytes / size;
  }
  if (tuning.vector == 1) {
    plan.shifted = false;
    plan.vector = 1;
  }

  if (by_columns) {
    plan.kernel = p.kept.empty() || p.length <= kLoads ? Kernel::thin : Kernel::columns;
  } else {
    plan.kernel = p.length <= int64_t{kWarp} * plan.vector ? Kernel::packed : Kernel::rows;
  }
  const bool ring = !by_columns && ring_takes_rows(r, device, vector);
  if (ring && tuning.kernel < 0 && ring_suits_rows(p, size, vector)) plan.kernel = Kernel::ring_rows;
  if (tuning.kernel >= 0) {  // only to another kernel of the same direction, and only where that one can
    const Kernel wanted = static_cast<Kernel>(tuning.kernel);
    if (wanted == Kernel::rows && plan.kernel == Kernel::packed) plan.kernel = wanted;
    if (wanted == Kernel::columns && plan.kernel == Kernel::thin && !p.kept.empty() && !p.reduced.empty()) plan.kernel = wanted;
    if (wanted == Kernel::ring_rows && ring) plan.kernel = wanted;
    if (plan.kernel != wanted)
      throw std::invalid_argument(std::string("tuning: the ") + kKernelNames[tuning.kernel] +
                                  " kernel does not take this input");
  }

  plan.warps = std::min(tuning.warps, plan.kernel == Kernel::rows        ? kMaxRowWarps
                                      : plan.kernel == Kernel::ring_rows ? kMaxRingPairs
                                                                         : kMaxColumnWarps);
  t.partial_output_stride = t.partial_split_stride = 1;
  switch (plan.kernel) {
    case Kernel::packed: plan_packed(plan, p); break;
    case Kernel::rows: plan_rows(plan, p, device, tuning); break;
    case Kernel::thin: plan_thin(plan, p); break;
    case Kernel::columns: plan_columns(plan, p, tuning); break;
    case Kernel::ring_rows: plan_ring_rows(plan, r, device, tuning, tuning.vector == 1 ? 1 : vector); break;
  }
  const int64_t tiles = ceil_div(t.outputs, t.columns) * t.column_tiles * t.splits;
  if (tiles > std::numeric_limits<uint32_t>::max()) throw std::invalid_argument("sum: the input is too large");
  t.tiles = static_cast<uint32_t>(tiles);
  plan.grid = std::min<int64_t>(tiles, tuning.grid ? tuning.grid : kMaxGrid);
  if (plan.kernel == Kernel::ring_rows)  // a tile a warp; one block fills a multiprocessor
    plan.grid = std::min<int64_t>(ceil_div(tiles, plan.warps),
                                  tuning.grid ? tuning.grid : int64_t{kRingBlocks} * device.multiprocessors);

  // One pass at least where the result is of a dtype that only the join rounds to.
  for (int64_t count = t.splits; count > 1 || (plan.joins.empty() && !is_direct(r.accumulator, r.out));
       count = plan.joins.back().results()) {
    Join join{};
    join.count = count;
    join.threads = static_cast<int>(std::min<int64_t>(power_of_two_above(ceil_div(count, kJoinRun)), kMaxJoin / kJoinRun));
    join.fan = join.threads * kJoinRun;
    plan.workspace_bytes += count * p.outputs * size_of(r.accumulator);
    plan.joins.push_back(join);
  }
  return plan;
}

std::string Plan::str() const {
  std::ostringstream s;
  s << "kernel " << kKernelNames[static_cast<int>(kernel)] << ": " << vector << (vector == 1 ? " element" : " elements")
    << " a load, " << warps << (warps == 1 ? " warp" : " warps") << " a block";
  if (ring.stages) s << ", " << ring.stages << " stages of " << ring.stage_bytes << " bytes a warp";
  if (nested) s << ", elements in nested dims";
  if (shifted) s << ", shifted from aligned loads";
  s << "\ntile: " << tiling.tile_outputs << " outputs x " << tiling.tile_leaves << " leaves; " << tiling.tiles
    << " tiles, grid " << grid << "\nsplits: " << tiling.splits;
  for (const Join& j : joins) s << (&j == joins.data() ? ", joined " : ", then ") << j.count << " -> " << j.results();
  s << "\nworkspace: " << workspace_bytes << " bytes; must move: " << bytes << " bytes";
  return s.str();
}

std::string Plan::json() const {
  std::ostringstream s;
  s << "{\"kernel\": \"" << kKernelNames[static_cast<int>(kernel)] << "\", \"vector\": " << vector
    << ", \"nested\": " << (nested ? "true" : "false") << ", \"shifted\": " << (shifted ? "true" : "false")
    << ", \"warps\": " << warps << ", \"grid\": " << grid << ", \"tiles\": " << tiling.tiles
    << ", \"splits\": " << tiling.splits << ", \"tile_outputs\": " << tiling.tile_outputs
    << ", \"tile_leaves\": " << tiling.tile_leaves << ", \"outputs\": " << tiling.outputs << ", \"leaves\": " << tiling.leaves
    << ", \"stages\": " << ring.stages << ", \"stage_bytes\": " << ring.stage_bytes << ", \"warp_columns\": " << warp_columns
    << ", \"thread_elements\": " << thread_elements << ", \"batches\": " << batches
    << ", \"workspace_bytes\": " << workspace_bytes << ", \"bytes\": " << bytes << ", \"joins\": [";
  for (const Join& j : joins) s << (&j == joins.data() ? "" : ", ") << j.fan;
  s << "]}";
  return s.str();
}

}  // namespace gpureduce
