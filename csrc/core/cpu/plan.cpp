#include "plan.h"

#include <algorithm>

namespace gpureduce::cpu {

namespace {

constexpr int64_t kTasksPerThread = 8;  // so that no thread waits long for the last
constexpr int64_t kSplit = 65536;       // fewest elements per split
constexpr int64_t kSplitLeaves = 16;    // fewest leaves per split of columns
constexpr int64_t kLeastWidth = 64;     // fewest columns per task when columns are cut for more threads
constexpr int64_t kLine = 16;           // tasks cut columns only at multiples of this
constexpr int64_t kWideDepth = 3;       // most elements of a leaf for which Tile::wide saves time
constexpr int64_t kExactTile = 4096;    // fewest integers per task, if there are enough rows

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t floor_power(int64_t n) {
  int64_t p = 1;
  while (p <= n / 2) p *= 2;
  return p;
}

int64_t ceil_power(int64_t n) { return n <= 1 ? 1 : 2 * floor_power(n - 1); }

double elements_of(const CpuProblem& p) { return static_cast<double>(p.length) * static_cast<double>(p.outputs()); }

// The most elements that a leaf has.
int64_t depth_of(const CpuProblem& p) { return std::min<int64_t>(kDepth, ceil_div(p.length, kLanes)); }

// True if elements are copied to a buffer before they are summed.
bool is_gathered(const CpuProblem& p) {
  const int64_t stride = p.columns > 1 ? p.column_stride : p.reduced.fastest().stride;
  return p.is_mapped() || p.negate || p.conjugate || p.reduced.rank > 1 || stride != 1;
}

// The accumulators that a tile has room for. If columns are gathered, all elements of their leaves must fit in the L1 cache,
// too.
int64_t capacity_of(const CpuProblem& p) {
  return kTileBytes / size_of(p.accumulator) / (is_gathered(p) && p.columns > 2 ? kDepth : 1);
}

// The fewest positions of a split.
int64_t least_split(const CpuProblem& p) { return p.is_order_free() ? kChunk : p.columns > 2 ? kSplitLeaves : kLanes; }

int threads_for(const CpuProblem& p, int most) {
  return static_cast<int>(std::min<double>(most, std::max(1.0, elements_of(p) / kGrain)));
}

int64_t wanted_tasks(int threads) { return threads == 1 ? 1 : kTasksPerThread * threads; }

// Cuts the columns into tiles of at most a quarter of a tile's capacity, so that it holds several leaves of each column. If
// rows and splits are too few for all threads, cuts them further, evenly among the threads.
int64_t count_column_tiles(const CpuProblem& p, int64_t positions, int threads) {
  const int64_t tiles = ceil_div(p.columns, capacity_of(p) / 4);
  if (threads == 1) return tiles;
  const int64_t others = p.row_count * ceil_div(positions, least_split(p)), most = p.columns / kLeastWidth;
  const int64_t enough = std::max(tiles, std::min(ceil_div(2 * threads, others), most));
  const int64_t even = ceil_div(enough, threads) * threads;
  return enough > 1 && enough * others < wanted_tasks(threads) && even <= most ? even : enough;
}

// Integers: the lanes of a tile take as many neighbouring elements as stay in registers. A tile takes rows until it has enough
// work.
Tile exact_tile(const CpuProblem& p, int64_t width) {
  const bool dense = width == p.reduced.fastest().stride;  // all columns of neighbouring elements lie side by side
  const int64_t leaves = p.columns == 1 ? kExactLanes : dense ? std::max<int64_t>(1, kLanes / width) : 1;
  const int64_t rows = std::min(p.row_count, std::max<int64_t>(1, kExactTile / (p.length * width)));
  return {rows, leaves, width, false, false};
}

// True if many columns of short leaves fill a tile: writing such leaves and reading them again takes as long as summing them.
bool is_wide(const CpuProblem& p, int64_t width, int64_t vector) {
  const int64_t leaves = leaf_count(p.length);
  return width >= vector && leaves >= 4 && ceil_power(leaves) * width >= capacity_of(p) && depth_of(p) <= kWideDepth;
}

// Short pieces of neighbouring rows usually lie side by side, so rows share pages, and the work of finding the vectors of a
// chunk. Long pieces are summed faster in place; with short vectors, or from memory, that holds from shorter pieces on.
bool is_abreast(const CpuProblem& p, int64_t width, const Facts& facts, bool shares_stream) {
  const int64_t shorter = facts.vector_bytes < 64 || shares_stream ? kLanes : 2 * kLanes;
  return p.reduced.rank > 1 && p.reduced.fastest().size < shorter && width <= 2;
}

// Floats: as many leaves as the tile has room for. If a row has fewer, the tile takes several rows.
Tile float_tile(const CpuProblem& p, int64_t width, int threads, const Facts& facts, bool shares_stream) {
  const int64_t capacity = capacity_of(p), leaves = leaf_count(p.length);
  const int64_t vector = facts.vector_bytes / size_of(p.accumulator);
  const bool sums = !p.is_joined();
  const bool wide = sums && is_wide(p, width, vector), abreast = sums && is_abreast(p, width, facts, shares_stream);
  // The fewest leaves that are joined into an accumulator before it is written.
  const int64_t joined = !sums ? 1 : width <= 2 ? std::min<int64_t>(4, vector / width) : wide && !is_gathered(p) ? 4 : 1;
  int64_t together = 1;  // rows that take a chunk at a time: a thread's share, spread evenly over the fewest tiles
  if (abreast) {
    const int64_t each = ceil_div(p.row_count, threads);
    together = ceil_div(each, ceil_div(each, joined * capacity / (kLanes * width)));
  }
  const int64_t tile_leaves = std::min(floor_power(joined * capacity / (width * together)), ceil_power(leaves));
  if (tile_leaves < leaves) return {together, tile_leaves, width, wide, abreast};
  int64_t fit = capacity / (tile_leaves * width);
  if (tile_leaves >= 64 && p.row_count >= joined * fit * wanted_tasks(threads)) fit *= joined;
  return {std::min(p.row_count, std::max(together, fit)), tile_leaves, width, wide, abreast};
}

// If there are too few tiles for all threads, outputs are split. A split is large enough to be worth a partial sum.
int64_t size_of_splits(const CpuProblem& p, const Tile& tile, int64_t positions, int64_t tiles, int threads) {
  if (threads == 1 || tiles >= wanted_tasks(threads)) return positions;
  const int64_t worth = kSplit / tile.width / (p.is_order_free() ? 1 : kDepth);
  return ceil_power(std::max({ceil_div(positions * tiles, wanted_tasks(threads)), tile.leaves, least_split(p), worth}));
}

// Room for the elements of a chunk's leaves, or for PieceVectors.
int64_t buffer_bytes_of(const CpuProblem& p, const Tile& tile, int vector_bytes) {
  const int64_t size = size_of(p.accumulator);
  int64_t bytes = std::max(kBufferBytes, std::min<int64_t>(tile.leaves, kLanes) * tile.width * depth_of(p) * size);
  if (tile.abreast) bytes = std::max(bytes, kBufferBytes + kChunk * tile.width * size / vector_bytes * kPlaceBytes);
  return bytes;
}

// Levels of the stack of tiles that wait for their neighbours: as many as the number of tiles has bits, and two.
int stack_levels(const CpuProblem& p, const Tile& tile) {
  int levels = 2;
  for (int64_t tiles = leaf_count(p.length) / tile.leaves; tiles > 0; tiles /= 2) ++levels;
  return levels;
}

}  // namespace

Plan make_plan(const Reduction& r, const Facts& facts) {
  Plan plan{make_cpu_problem(r)};
  const CpuProblem& p = plan.problem;
  plan.threads = threads_for(p, facts.threads);
  const double bytes = elements_of(p) * info(p.in).size;
  plan.shares_stream = bytes > plan.threads * facts.cache_bytes;

  plan.positions = p.is_order_free() ? p.length : leaf_count(p.length);
  plan.column_tiles = count_column_tiles(p, plan.positions, plan.threads);
  const int64_t lines = ceil_div(p.columns, kLine);
  const int64_t width = plan.column_tiles == 1 ? p.columns : ceil_div(lines, plan.column_tiles) * kLine;
  plan.tile = p.is_order_free() ? exact_tile(p, width) : float_tile(p, width, plan.threads, facts, plan.shares_stream);
  plan.row_tiles = ceil_div(p.row_count, plan.tile.rows);
  plan.split_size = size_of_splits(p, plan.tile, plan.positions, plan.row_tiles * plan.column_tiles, plan.threads);
  plan.splits = ceil_div(plan.positions, plan.split_size);
  plan.threads = static_cast<int>(std::min<int64_t>(plan.threads, plan.tasks()));

  const int64_t sums = plan.tile.rows * width * size_of(p.accumulator);
  plan.sums_bytes = ceil_div(sums, 64) * 64;
  plan.buffer_bytes = buffer_bytes_of(p, plan.tile, facts.vector_bytes);
  plan.scratch_bytes = plan.buffer_bytes + 2 * kTileBytes + stack_levels(p, plan.tile) * sums;
  return plan;
}

Task Plan::task(int64_t i) const {
  const int64_t split = i % splits, columns = problem.columns, lines = ceil_div(columns, kLine);
  i /= splits;
  const auto column = [&](int64_t i) { return std::min(columns, lines * i / column_tiles * kLine); };
  Task t;
  t.first_column = column(i % column_tiles);
  t.width = column(i % column_tiles + 1) - t.first_column;
  t.first_row = i / column_tiles * tile.rows;
  t.rows = std::min(tile.rows, problem.row_count - t.first_row);
  t.begin = split * split_size;
  t.end = std::min(t.begin + split_size, positions);
  return t;
}

}  // namespace gpureduce::cpu
