#include "segments.h"

#include <algorithm>
#include <sstream>

#include "../problem/nest.h"
#include "plan.h"

namespace gpureduce::cuda {

namespace {

// The most elements of a single column, in all or per segment, for which the kernel of rows is slower.
constexpr int64_t kFewInColumn = 1 << 18, kTinyInColumn = 8;
// Per multiprocessor: threads and blocks that should have work, and tiles that are enough.
constexpr int64_t kThreadsOfEach = 1024, kBlocksOfEach = 2, kTilesOfEach = 16;
// Mean rows of a segment: the fewest for which groups share it, and the most for which a thread takes several segments.
constexpr int64_t kLeastShared = 8, kShortMean = 16;

// True if kernels compiled for a dtype can read and write these segments.
bool are_typed(const Segments& s) {
  const Reduction& r = s.reduction;
  const DTypeInfo& in = info(r.in);
  if (r.negate || r.conjugate || !is_native(r.accumulator, r.out)) return false;
  if (r.accumulator == Accumulator::largest_f32 || r.addends == Addends::exponents)
    return (in.family == Family::single || in.family == Family::half) && in.size <= 4;
  if (s.gather.weights && in.kind == Kind::integer) return false;
  return r.map == Map::value && r.accumulator == in.accumulator && has_segments(in.family);
}

// True if the elements of each row lie side by side, and so do the results. Also true for a single column with few elements, in
// all or per segment, or with elements that are not neighbours.
bool are_columns(const Segments& s) {
  const Problem& p = s.reduction.problem;
  if (p.outputs == 1 && s.gather.numbers) return true;
  if (p.outputs == 1) return s.stride != 1 || s.length <= kFewInColumn || s.length <= s.count * kTinyInColumn;
  return p.kept.size() == 1 && p.kept[0].stride == 1 && p.kept[0].out_stride == 1;
}

SegmentKernel kernel_of(const Segments& s, bool native) {
  if (!native || !are_typed(s)) return SegmentKernel::converted;
  if (are_columns(s)) return SegmentKernel::columns;
  const Problem& p = s.reduction.problem;
  return s.stride == 1 && !s.gather.numbers && fits_fast_nest(p.kept, p.outputs) ? SegmentKernel::rows
                                                                                 : SegmentKernel::converted;
}

// Like plan_columns(), returns for how many sums of parts there must be room.
int64_t plan_rows(const Segments& s, int64_t multiprocessors, SegmentPlan& plan) {
  const int64_t rows = s.reduction.problem.outputs, in_row = s.length + s.count * kRowWeight, positions = rows * in_row;
  const int64_t warps = multiprocessors * kRowWarps;
  const int64_t rounds = std::max<int64_t>(1, ceil_div(positions, warps * kMostRowTile));
  plan.tile = std::max<int64_t>(kLeastRowTile, ceil_div(positions, warps * rounds));
  plan.row_tiles = std::max<int64_t>(1, ceil_div(in_row, plan.tile));
  plan.tiles = rows * plan.row_tiles;
  plan.blocks = std::min(plan.tiles, warps);
  plan.joins = plan.row_tiles > 1 && s.length > kChunk;
  return rows * chunk_slots(s.length);
}

void plan_thread(const Segments& s, SegmentPlan& plan) {
  const Reduction& r = s.reduction;
  const int size = info(r.in).size, sides = s.gather.numbers ? 1 : segment_sides(size);
  const bool integer = info(r.in).kind == Kind::integer;
  const int vector = s.gather.numbers ? gathered_vector(size, integer) : segment_vector(size);
  const bool is_aligned = reinterpret_cast<uintptr_t>(r.input) % (vector * size) == 0 && s.stride % vector == 0;
  const bool are_short = s.length <= s.count * kShortMean;
  plan.vector = is_aligned && r.problem.outputs % vector == 0 ? vector : 1;
  plan.sides = plan.vector == 1 && are_short && r.problem.outputs > kWarp / 2 * sides ? sides : 1;
}

int64_t plan_columns(const Segments& s, int64_t multiprocessors, SegmentPlan& plan) {
  plan_thread(s, plan);
  const int64_t columns = s.reduction.problem.outputs, threads = ceil_div(columns, plan.vector * plan.sides);
  const int64_t mean = s.length / std::max<int64_t>(1, s.count);
  plan.width_bits = std::min(5, log2_up(threads));
  plan.column_tiles = ceil_div(threads, int64_t{1} << plan.width_bits);
  const int groups = kColumnThreads >> plan.width_bits;
  // Groups share segments if threads would have too little to do otherwise.
  const auto more = [&](int parts) {
    return parts < groups && 2 * parts <= mean && s.count * threads * parts < kThreadsOfEach * multiprocessors;
  };
  while (mean >= kLeastShared && more(1 << plan.part_bits)) ++plan.part_bits;
  // A group has so few rows that all multiprocessors have work.
  int part_rows = kPartRows;
  const auto has_few_blocks = [&] {
    return ceil_div(s.length, std::min(kChunk, part_rows * groups)) * plan.column_tiles < kBlocksOfEach * multiprocessors;
  };
  while (part_rows > kLeastPartRows && s.length > kPartRows * groups && has_few_blocks()) part_rows /= 2;
  plan.piece_bits = kChunkBits;
  while (1 << plan.piece_bits > part_rows * groups) --plan.piece_bits;
  plan.short_rows = std::min(1 << plan.piece_bits, kPartRows << plan.part_bits);
  const int64_t units = groups >> plan.part_bits, blocks = ceil_div(s.count, units) * plan.column_tiles;
  const int64_t spare = blocks * kColumnThreads / (kThreadsOfEach * multiprocessors);
  const int64_t run = std::min<int64_t>(spare, kShortMean / (mean + 1)) / kAtOnce * kAtOnce;
  plan.run = static_cast<int>(plan.part_bits > 0 ? 1 : std::max<int64_t>(run, 1));
  plan.blocks = ceil_div(s.count, units * plan.run);
  plan.tile = int64_t{1} << plan.piece_bits;
  plan.joins = s.length > plan.tile;
  if (s.length > plan.short_rows) {
    const int64_t enough = kTilesOfEach * multiprocessors;
    while (plan.tile < kMostTileRows && ceil_div(s.length, plan.tile) * plan.column_tiles > enough) plan.tile *= 2;
    plan.tiles = ceil_div(s.length, plan.tile);
    plan.blocks += plan.tiles;
  }
  return columns * piece_slots(s.length, plan.piece_bits);
}

}  // namespace

SegmentPlan plan_segments(const Segments& s, const Device& device) {
  SegmentPlan plan{};
  plan.kernel = kernel_of(s, device.native);
  const auto plan_kernel = plan.kernel == SegmentKernel::columns ? plan_columns : plan_rows;
  const int64_t partials = plan_kernel(s, device.multiprocessors, plan);
  // If elements are converted, real numbers have complex accumulators, and maxima of floats double ones.
  const Accumulator a = s.reduction.accumulator;
  const bool doubles = plan.kernel == SegmentKernel::converted &&
                       (a == Accumulator::f32 || a == Accumulator::f64 || a == Accumulator::largest_f32);
  plan.workspace_bytes = plan.joins ? partials * (doubles ? 2 : 1) * size_of(a) : 0;
  plan.streams = s.reduction.problem.outputs * s.length * info(s.reduction.in).size > device.l2_bytes / 4;
  const bool columns = plan.kernel == SegmentKernel::columns;
  plan.join_column_tiles = columns ? ceil_div(s.reduction.problem.outputs, kWarp) : 1;
  const int64_t joined = columns ? ceil_div(s.length, int64_t{1} << plan.piece_bits) : plan.tiles;
  plan.join_blocks = plan.joins ? ceil_div(joined, kJoinWarps) * plan.join_column_tiles : 0;
  return plan;
}

std::string text_of(const Segments& s) {
  const Reduction& r = s.reduction;
  std::ostringstream text;
  text << "segments of " << info(r.in).name << " -> " << info(r.out).name << ", added in " << name_of(r.accumulator)
       << (r.addends == Addends::exponents ? ", as exponentials" : "") << "\n"
       << s.count << (s.count == 1 ? " segment" : " segments") << " of " << s.length << (s.gather.numbers ? " gathered" : "")
       << " rows of " << r.problem.outputs << (s.gather.weights ? ", weighted" : "");
  return text.str();
}

std::string SegmentPlan::str(const Segments& s) const {
  constexpr const char* kNames[] = {"rows", "columns", "rows, converted"};
  const bool is_columns = kernel == SegmentKernel::columns;
  std::ostringstream text;
  text << "kernel segment " << kNames[static_cast<int>(kernel)] << ": ";
  if (is_columns)
    text << vector * sides << (vector * sides == 1 ? " column" : " columns") << " per thread" << (sides > 1 ? ", apart" : "")
         << ", " << (1 << width_bits) << " threads side by side, " << (1 << part_bits)
         << " below each other on a short segment";
  else text << "a warp per tile of " << tile << " positions";
  if (streams) text << ", streamed through the L2";
  text << "\nblock: " << (is_columns ? kColumnThreads : kWarp) << " threads; grid " << blocks * (is_columns ? column_tiles : 1)
       << "; " << tiles << (tiles == 1 ? " tile" : " tiles");
  if (is_columns) text << " of " << tile << " rows of longer segments than " << short_rows;
  if (joins)
    text << "\nkernel join_segment_" << (is_columns ? "columns" : "rows") << ": a warp per tile\nblock: " << kJoinWarps * kWarp
         << " threads; grid " << join_blocks;
  text << "\nworkspace: " << workspace_bytes
       << " bytes; must move: " << s.reduction.problem.outputs * s.length * info(s.reduction.in).size << " bytes";
  return text.str();
}

}  // namespace gpureduce::cuda
