#include "plan.h"

#include "nest.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace gpureduce {

namespace {

// --- tuning constants, with what they gain on an H200 (bench/tune.py measures others) --------------------------------------
constexpr int kVectorBytes = 16;  // the widest load
constexpr int kWarps = 8;         // warps a block
// Up to this many units one block does it all, without a join: 2^14 float32 1.2 us instead of 1.8.
constexpr int kOneBlockUnits = 16;
// Clusters instead of a join. Rows of more than a block takes are cut into tiles of so many units, or as many more, up to
// kDenseUnits, as leave no more splits than a cluster's blocks; small blocks keep the memory busier than large ones. (400,
// 20000) float32 8.8 us in five blocks of four warps, 10.4 with a row a block, and 10.5 with a join; (264, 50000) 13.7 in seven
// of eight warps, and 15.8 in two of sixteen; (24, 81920) 3.7 in five of sixteen, and 4.5 with a join. But of few rows
// kDenseUnits are too many, (4, 299648) float16 3.25 us, and 3.08 with a join, and where some multiprocessors have two of
// these, and others one: (18, 234368) int32 7.3 and 6.6.
constexpr int kClusterUnits = 4;
// Into kDenseUnits instead of half as many where these are one or two tiles for at least so many percent of the
// multiprocessors: (64, 128256) float32 9.3 us, and 9.6 in twice as many tiles. Of single elements, whose warps would have a
// unit each, also where these are more than so many tiles a multiprocessor: (671, 100001) float32 61.2 us, and 63.9.
constexpr int kFull = 90;
constexpr int kManyLarge = 4;
// Rows of up to kDenseUnits are whole nevertheless where no multiprocessor has two, but clusters would be more than half of the
// warps that run at a time, and so would not all be there when the kernel before ends: (80, 32768) float32 4.2 us, and 5.1 in
// clusters; (64, 32768) 3.8 and 3.7.
constexpr int kEarlyWarps = dense_wave(Walk::dense) / 2;
// Clusters of rows in nested dims, and of columns, have so many blocks at most, and all run at a time, two a multiprocessor at
// most, for these blocks are large, and clusters not spread as evenly as blocks; columns' also more, if tiles are no more than
// so many percent of the multiprocessors. Columns (16384, 4096) float32, four blocks, 62.0 us, and 62.6 with a join; bfloat16,
// eight, 33.7 and 32.8; (16384, 6144) float32, 384 tiles in clusters of four, 110.5 and 91.1.
constexpr int kFewSplits = 4;
constexpr int kFewClusterBlocks = 2;
constexpr int kClusterShare = 75;
// Shifted rows of more chunks than a block has warps: in clusters of blocks of two warps, up to so many a multiprocessor, else
// of four or eight: (64, 50257) bfloat16 4.0 us, and 5.4 a row a block; (400, 100001) 21.5 and 27.4, with a join 22.6. Of
// float8 only as many as are early: (250, 50257) 6.4 and 7.7, but (1500, 50257) 26 and 22.
constexpr int kShiftedClusters = 4;
constexpr int kShiftedClusterUnits = 8;
// Units of so few rows that one block takes nevertheless: (4, 32768) bfloat16, 16 units, 1.74 us in clusters, and 1.97.
constexpr int kFewRows = 8;
constexpr int kFewBlockUnits = 12;
// Units of long dense rows that a block takes, at most, if that leaves several blocks a multiprocessor; and at least. (8, 2^23)
// bfloat16 32.5 us, and 33.0 with twice as many. In nested dims (256, 64, 56, 56) dims 0, 2, 3 bfloat16 26.4 us with
// kNestedUnits, 27.0 with twice as many.
constexpr int kDenseUnits = 32;
constexpr int kNestedUnits = 16;
constexpr int kFewDenseUnits = 4;
constexpr int kTilesPerProcessor = 3;
constexpr int kGeneralWarps = 4;  // a block of the rows kernel
// Rows at odd addresses are read in shifted vectors where they are longer than this: rows (4096, 50257) bfloat16 93 us instead
// of 117 with single elements, (65536, 1023) 33 and 45, int8 19 and 50.
constexpr int kShiftedLength = kLanes;
// Their chunks that a block takes, where tiles are more than so many a multiprocessor: full 2^26 bfloat16 33.0 us, and 36.9
// with four times as many; rows (4096, 50257) 92.8, and 95.3 with whole rows. Half as many where tiles are few: (64,
// 128257) 6.7 us instead of 7.4.
constexpr int kShiftedUnits = 4;
constexpr int kManyShiftedTiles = 32;
constexpr int kFewShiftedTiles = 8;
// Of float8 a warp takes two chunks, and of many long rows a block is one warp: (4096, 50257) 51.3 us, and 53.4 with whole rows
// of up to so many warps; (1000, 100001) 28.3 and 32.5.
constexpr int kFloat8Units = 2;
constexpr int kFloat8Warps = 4;
// Shifted rows of one unit, a warp each: as few warps a block as bring so many bytes, for blocks do not start faster than one
// in 1.2 ns, in which the memory reads that much. (65536, 1501) bfloat16 48.3 us with two, 80.2 with one, 49.9 with four.
constexpr int kBlockBytes = 5400;
// So have blocks of short rows of several units: (65536, 1040) float32 61.2 us, and 80.5 with a row a block. Fewer rows a
// multiprocessor than these are begun at once anyway, and are taken by blocks of kWarps. Nor has a short second chunk of many
// rows a warp of its own: (16384, 5001) bfloat16 41.9 us, and 46.6; but (2000, 5001) 9.0 and 8.3.
constexpr int kManyRows = 24;
constexpr int kSector = 32;  // bytes
// But of single elements not fewer than so many: (130816, 513) float32 61.6 us, and 80.5 with two, 63.5 with eight.
constexpr int kSingleWarps = 4;
// Units of a longer row of single bytes that a warp takes, if rows are many, and its warps at most: (16384, 4097) int8, two
// apart, 40.5 us with two warps, 42.9 with one, 44.0 with four; (8192, 6001) 32.7 with four, 33.3 and 36.7 with two and eight.
constexpr int kByteWarpUnits = 2;
constexpr int kByteWarps = 4;
// Columns at odd addresses are read so where they have more rows than this: (2000, 100001) bfloat16 125 us, and 314 with single
// elements. Also from so many bytes on, but not those of bytes: (1000, 100001) 66 and 97 us, int8 191 and 89; (300, 201)
// bfloat16 3.6 and 3.0.
constexpr int kShiftedRows = 2 * kLanes;
constexpr int64_t kShiftedColumnBytes = 1 << 20;
// Tiles that the columns kernel needs for two multiprocessors. With more it takes several batches of leaves a thread, then
// several units a warp: (16384, 4096) bfloat16 34.9 us instead of 36.1 with one unit, and 39 with one batch. While a
// multiprocessor's tiles are fewer than kManyColumnTiles, small blocks of them are one wave: (50257, 1024) bfloat16 28.4 us
// instead of 31.1.
constexpr int kColumnTiles = 7;
constexpr int kManyColumnTiles = 7;
constexpr int kFewColumnWarps = 4;
// Tiles that the panels kernel needs for five multiprocessors: tiles as large as leave so many have the fewest ends, and all
// run at a time. (64, 4096, 1024) dim 1 bfloat16 122.6 us with whole columns a tile, 512 tiles, 127 with 2048 tiles. Small
// inputs, where a thread takes one batch, need kFewPanelTiles: (100352, 64) bfloat16 6.4 us with 200 tiles, 8.2 with 400; and
// columns at odd addresses, of which fewer run at a time.
constexpr int kPanelTiles = 9;
constexpr int kFewPanelTiles = 7;
// Float8, the end of whose tiles is the dearest, has more where rows are a line or longer: (16384, 8192) 37.2 us with
// kPanelTiles, and 35.0; (16384, 8193) 45.5 and 44.0; but (2^20, 64) 20.0 and 20.5.
constexpr int kFloat8PanelTiles = 2 * kPanelTiles;
constexpr int64_t kFloat8Columns = 64 << 20;  // bytes: (4096, 8192) 11.5 us with kPanelTiles, and 12.5
// Rows of one line each, one after the other, are read a batch a thread, so that a warp reads neighbouring ones, in tiles of at
// most so many leaves: (2^20, 64) bfloat16 34.0 us, 34.6 with twice as many, and 34.9 in four batches; (2^22, 64) 123.5, 126.5
// and 130.
constexpr int kLineLeaves = 256;
constexpr int kLineWidth = kLine / kVectorBytes;  // threads that read a line
// Units of a tile, at most, where tiles take unequal times; as of spread columns, (50257, 1001) float64 95.2 us, and 96.5 with
// more.
constexpr int kUnequalUnits = 32;
// Leaves of a tile where columns are so many bytes, and apart by so many from row to row; fewer bytes gain less than the join
// takes. (8192, 32768) float32 237.6 us, and 243.7 with 1024 leaves; (64, 4096, 1024) float64 470.1 and 477.9, float32 238.7
// and 240.1, but bfloat16, of half the bytes, 124.8 and 123.4.
constexpr int kLargeLeaves = 64;
constexpr int64_t kLargeColumns = 512 << 20;
constexpr int64_t kLargePitch = 4096;
// Where tiles would leave many multiprocessors, or places, with one less than others, tiles are as short from so many bytes on,
// or from half as many on where a column would have two at most: (4096, 20000) float32 74.7 us, and 92.1 in 313 tiles; (1536,
// 38400) bfloat16 31.6 and 40.2 in 600; but (4096, 9600) 23.4 and 22.1 in 300, four a column.
constexpr int64_t kUnevenColumns = 128 << 20;
constexpr int kEven = 96;  // percent of the places: from there on it does not show
// Blocks are small, of kFewColumnWarps, where tiles are more than run at a time in large ones, the last of which would be
// alone, but at most so many percent of those that run in small ones: (19019, 2048) bfloat16 21.5 us, and 25.6; (10000, 4096)
// float8 14.6 and 17.5; but in 79% of the places (50257, 1024) float32 49.6 and 49.2, and with two elements a leaf or one (460,
// 86080) int8 15.1 and 13.5. Instead of short tiles, so that places are even, also tiles of the length that makes them so many:
// (8579, 6144) float32 51.1 us, and 53.7; (9103, 3072) complex64 53.8 and 56.3; (8917, 7936) bfloat16 35.4 and 40.9. Not where
// columns are few: (385098, 128) float32 47.9 us, and 46.9.
constexpr int kMostWave = 75;
constexpr int kMostFloat8Wave = 88;
constexpr int64_t kSmallBlockPitch = 1024;  // bytes
// Bytes up to which columns are whole in fewer tiles than there are multiprocessors, to save the join; (2048, 4096) float32 9.9
// us in clusters, and 14.0 so.
constexpr int64_t kSmallColumns = 4 << 20;
// Bytes from which on columns are spread: (300, 201) float64 3.16 us, and 3.24 if not; float32 3.25 and 3.17.
constexpr int64_t kSpreadInput = 1 << 18;
// Bytes of lane sums that a block of the narrow kernel takes, of runs of so many leaves at least. Runs get shorter down to
// pieces of kNarrowPiece bytes while there are too few for the multiprocessors, and a block takes several while there are so
// many tiles a multiprocessor.
constexpr int kNarrowBytes = 24 * 1024;
constexpr int kNarrowLeaves = 16;
constexpr int kNarrowPiece = 2048;
constexpr int kNarrowTiles = 3;
// Warps of a block, at least and at most: (2^20, 100) float32 98.2 us with five, in five rounds, and 100.1 with four, in seven;
// but (671088, 100) bfloat16, in 655 tiles, 36.5 with four and 42.6 with five, of which only 528 run at a time.
constexpr int kNarrowWarps = 4;
constexpr int kMaxNarrowWarps = 6;
constexpr int64_t kNarrowInput = 32 << 20;  // bytes: (100352, 64) float32 takes 12 us, and 10 as columns
// Shared memory that a block of the ring kernel takes, and the stages of a warp's ring.
constexpr int kRingBytes = 108 * 1024;
constexpr int kRingStages = 2;
constexpr int kStageBytes = 4096;  // of several short rows: int8 (2^22, 15) 29.3 us, and 30.3 with 6144
// Words of rows that several threads of the ring kernel share; longer ones, up to kWholeRowWords, a thread takes alone: (2^20,
// 89) bfloat16 48 us, and 95 shared; (2^18, 197) 28.6 and 56.5.
constexpr int kSharedRowWords = 4;
// Rows that could also be read in pieces of a word it takes too if they are longer than this, if no more than so many of 32
// threads would then have a word, and if the input has so many bytes: (2^20, 66) bfloat16 37 us, and 59 in pieces; (2^20, 33)
// int32 37 and 64; (2^20, 100) bool 30 and 38; but (2^21, 29) float32 62 and 60, (2^17, 100) int8 6.1 and 5.5.
constexpr int kPieceRowWords = 8;
constexpr int kByteRowThreads = 25;
constexpr int kWordRowThreads = 24;
constexpr int64_t kPieceRowInput = 16 << 20;
// Rows of up to so many bytes, elements of one and two counted as four, are read element by element, several rows a warp, if
// a multiprocessor has so many, of eight bytes kManyRows: (65536, 100) float32, two apart, 13.8 us, and 27.2 with a warp each;
// (2000, 100) 1.95 and 2.45, but (500, 100) 1.70 and 1.54, (4500, 200) 3.8 and 3.3, float64 (2000, 100) 2.40 and 2.19.
constexpr int kScatteredBytes = 512;
constexpr int kScatteredRows = 8;
// Elements from which on the ring is worth its start, and of bytes. Fewer are read one by one, several rows of up to kShortRow
// a warp: (16000, 99) bfloat16 3.2 us, and 4.2 in the ring; (65536, 99) 7.2 and 6.3; int8 (4000, 99) 1.9 and 2.7, (32000,
// 99) 5.1 and 3.4; but (4000, 300) bfloat16 3.2 and 2.4 with a warp each.
constexpr int64_t kRingElements = 4 << 20;
constexpr int64_t kRingByteElements = 1 << 20;
constexpr int kShortRow = 256;
// A thread takes whole columns where others would be blocks of less than so many bytes, of large ones kBlockBytes, which do not
// start fast enough, and so many times more than a column has elements: (50000, 30, 16) dim 1 float32 24.8 us, and 61.9 in
// panels; (2880, 11, 5) 2.2 and 4.1; but (3000, 100, 3) 9.4 and 5.7, (5000, 40, 64) bfloat16 12.4 and 10.8. (9, 12078976)
// float64 222.8 and 230.7, but (9, 10^6) 23.1 and 21.4.
constexpr int kWholeBytes = 4000;
constexpr int kWholeBlocks = 60;
// Single elements, of columns up to so long, if a multiprocessor has so many: (200, 80000) float32, two apart, 32.6 us,
// and 40.4 in the columns kernel; (300, 50000) 38.6 and 36.3.
constexpr int kWholeLength = 256;
constexpr int kWholeColumns = 256;
// And longer ones at odd addresses of so few neighbours: (30000, 500, 3) float32 68 us, and 96 in panels.
constexpr int kFewNeighbours = 4;
constexpr int kTinyWarps = 4;
constexpr int kExpandedWarps = 4;
// The share of the L2 beyond which an input is streamed: its lines are the first to go, before results, partial sums, the code
// of kernels and what other kernels left there. Not if results are as large themselves. (2^20, 100) float32 93.1 us, and 99.6;
// full 2^24 17.9 and 18.0; but columns (2, 2^25) 104.2 and 93.8.
constexpr int kStreamedShare = 4;
// Rows of columns that the panels kernel takes: as many as fit its grid in the longest tiles.
constexpr int64_t kMaxPanelRows = kMaxGridDepth * kMaxPanelLeaves * kDepth;
// --------------------------------------------------------------------------------------------------------------------------

constexpr const char* kKernelNames[] = {"rows",     "thin", "columns", "ring_rows", "narrow",
                                        "expanded", "tiny", "dense",   "flat",      "panels"};

constexpr const char* kWalkNames[] = {"dense", "linear", "nested", "shifted", "spread", "deep"};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t power_of_two_above(int64_t x) {
  int64_t p = 1;
  while (p < x) p *= 2;
  return p;
}

// Cuts every output's leaves into tiles of so many, a power of two.
void cut_leaves(Tiling& t, int64_t tile_leaves) {
  const int64_t splits = ceil_div(t.leaves, tile_leaves);
  if (splits > kMaxGrid)
    throw std::invalid_argument("sum: the input has too many elements an output: these would be joined from " +
                                std::to_string(splits) + " partial sums, and at most " + std::to_string(kMaxGrid) + " can be");
  t.tile_leaves = static_cast<int32_t>(tile_leaves);
  t.splits = static_cast<uint32_t>(splits);
}

// Warps a block, of up to `most`, each with so many outputs: fewer where blocks of that many would be too few.
int busy_warps(int most, int64_t outputs, const Device& device, int64_t warp_outputs = 1) {
  while (most > 1 && outputs < most * warp_outputs * device.multiprocessors) most /= 2;
  return most;
}

int64_t bytes_moved(const Problem& p, int64_t in_size, int64_t out_size) {
  int64_t elements = 1;  // an expanded dim is read once
  for (const KeptDim& d : p.kept) elements *= d.stride ? d.size : 1;
  for (const ReducedDim& d : p.reduced) elements *= d.stride ? d.size : 1;
  return elements * in_size + p.outputs * out_size;
}

// Bytes of an output as kernels write it: the result, or an accumulator that the join rounds.
int written_bytes(const Reduction& r) { return is_direct(r.accumulator, r.out) ? info(r.out).size : size_of(r.accumulator); }

bool is_float8(const Reduction& r) { return info(r.in).size == 1 && info(r.in).kind == Kind::floating; }

// The blocks of a cluster: an output's splits, if they are to be one, or it is told to make them one; or else 1, as where only
// the join rounds to the result's dtype.
int cluster_of(const Plan& plan, bool wanted, const Reduction& r, const Device& device, const Tuning& tuning) {
  const int64_t splits = plan.tiling.splits, most = tuning.cluster ? tuning.cluster : wanted ? kMaxCluster : 1;
  return device.clusters && is_direct(r.accumulator, r.out) && splits <= most ? static_cast<int>(splits) : 1;
}

// Whether tiles are few: two a multiprocessor at most.
bool are_few(int64_t tiles, const Device& device) { return tiles <= int64_t{kFewClusterBlocks} * device.multiprocessors; }

// Whether the input is too large to be of use in the L2 later on, but what is written is not.
bool is_streamed(const Reduction& r, const Device& device) {
  const int64_t share = device.l2_bytes / kStreamedShare;
  return bytes_moved(r.problem, info(r.in).size, 0) > share && r.problem.outputs * written_bytes(r) <= share;
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

// How rows or columns that are dense, but not at aligned addresses, are read a vector's a thread nevertheless; or else `single`
// elements.
Walk unaligned_walk(const Reduction& r, bool by_columns, Walk single) {
  const Problem& p = r.problem;
  const int size = info(r.in).size;
  if (!is_typed(r) || p.reduced.size() != 1) return single;
  if (!by_columns) return shifts_rows(size) && p.reduced[0].stride == 1 && p.length > kShiftedLength ? Walk::shifted : single;
  if (p.kept.empty() || p.kept.back().stride != 1 || p.kept.back().size == 1) return single;
  const int64_t bytes = bytes_moved(p, size, 0);
  if (spreads_columns(size)) return bytes >= kSpreadInput ? Walk::spread : single;
  // Else vectors of several rows may reach out of the input.
  if (!shifts_columns(size) || p.reduced[0].stride * size < kVectorBytes) return single;
  const bool few = p.length <= kShiftedRows, small = bytes < kShiftedColumnBytes;
  return !few || (p.length > 2 * kLoads && shifted_column_elements(size) == 1 && !small) ? Walk::shifted : single;
}

// Elements of a leaf that a thread has in flight at once.
int thread_elements(const Problem& p) { return p.length <= 2 * kLanes ? 2 : p.length <= 4 * kLanes ? 4 : kDepth; }

// Bytes of an element as kernels have it, after a conversion at run time if there is one.
int element_bytes(const Reduction& r) { return is_typed(r) ? info(r.in).size : size_of(r.accumulator); }

// Whether rows are not that long or many that the general kernel has to take them: (300, 4097) float32 2.9 us, and 4.0 through
// it; (16384, 4097) 60.1 and 61.0.
bool dense_takes(const Problem& p) {
  // What it counts in 32 bits: units, and elements where it divides.
  const int64_t most = kMaxGrid * kWarp * kDepth - kChunk;
  const bool near = p.length <= (p.reduced.size() == 1 ? most : kMaxGrid);
  return near && p.outputs < kMaxGrid;
}

// Bytes of memory that a row takes: of elements a stride apart, up to whole sectors.
int64_t touched_bytes(const Problem& p, int size) {
  const int64_t stride = std::max<int64_t>(1, p.reduced.back().stride);
  return p.length * std::min<int64_t>(stride * size, kSector);
}

// Whether rows are so many that blocks of little each start too slowly.
bool are_many(const Problem& p, const Device& device) { return p.outputs >= int64_t{kManyRows} * device.multiprocessors; }

// How long dense rows are cut: units of a tile, at most; and whether into these even if rows are enough.
struct Cut {
  int most;
  bool always;
};
Cut cut_of(const Plan& plan, const Reduction& r, int64_t units, bool enough_long_rows, const Device& device) {
  if (plan.walk == Walk::nested) return {kNestedUnits, false};
  if (plan.walk != Walk::shifted) return {kDenseUnits, false};
  if (is_float8(r) && enough_long_rows) return {kFloat8Units, true};
  if (info(r.in).size == 1) return {2 * kShiftedUnits, false};
  return {kShiftedUnits, units >= int64_t{kManyShiftedTiles} * kShiftedUnits * device.multiprocessors};
}

// Dense rows in tiles of so many units.
struct RowTiles {
  int64_t rows, row_units, block_units;  // those of a row; and in a block that takes all of it
  Walk walk;
  bool single, float8;  // elements are read one by one; are of float8
  const Device& device;

  int64_t splits(int64_t units) const { return ceil_div(row_units, units); }
  int64_t tiles(int64_t units) const { return rows * splits(units); }
  static bool fill(int64_t tiles, int64_t places) { return tiles <= places && 100 * tiles >= kFull * places; }

  // Whether one block takes a row.
  bool fit_blocks() const {
    if (walk == Walk::shifted) return block_units <= dense_warps(walk);
    return block_units <= (device.clusters && rows <= kFewRows ? kFewBlockUnits : kOneBlockUnits);
  }

  // Units of longer rows that need no join: as few as make a row's splits a cluster, or all; or 0.
  int64_t without_join() const {
    const int64_t processors = device.multiprocessors;
    if (!device.clusters) return 0;
    if (walk == Walk::nested) return nested_clusters();
    if (walk == Walk::shifted) return shifted_clusters();
    const bool late = rows * row_units > kEarlyWarps * processors;
    if (late && rows <= processors && row_units <= kDenseUnits) return kDenseUnits;
    int64_t units = kClusterUnits;
    while (splits(units) > kMaxCluster) units *= 2;
    if (units < kDenseUnits) {
      const int64_t large = tiles(kDenseUnits);
      const bool better = fill(large, processors) || fill(large, 2 * processors) || (single && large > kManyLarge * processors);
      return 2 * units == kDenseUnits && better ? kDenseUnits : units;
    }
    const bool some_have_two = tiles(units) > processors && 3 * tiles(units) <= 4 * processors;
    return units == kDenseUnits && rows >= kFewRows && !some_have_two ? units : 0;
  }

 private:
  int64_t nested_clusters() const {
    for (int64_t units = kNestedUnits; units <= kDenseUnits; units *= 2)
      if (splits(units) <= kFewSplits && are_few(tiles(units), device)) return units;
    return 0;
  }

  int64_t shifted_clusters() const {
    for (int64_t units = 2; units <= kShiftedClusterUnits; units *= 2) {
      const int64_t most = units == 2 ? kShiftedClusters : float8 ? kEarlyWarps * kFloat8Units / units : kMaxGrid;
      if (splits(units) <= kMaxCluster && tiles(units) <= most * device.multiprocessors) return units;
    }
    return 0;
  }
};

void plan_dense(Plan& plan, const Reduction& r, const Device& device, const Tuning& tuning) {
  const Problem& p = r.problem;
  Tiling& t = plan.tiling;
  const int size = info(r.in).size;
  const bool shifted = plan.walk == Walk::shifted;
  const Walk walk = dense_walk(plan.walk, p, is_typed(r));
  plan.thread_elements = thread_elements(p);
  if (plan.thread_elements == 4 && walk == Walk::deep) plan.thread_elements = kDepth;
  const int unit_leaves = row_unit(plan.vector, plan.thread_elements, element_bytes(r), plan.walk);
  const int64_t row_units = ceil_div(t.leaves, unit_leaves), units = p.outputs * row_units;
  const bool rows_enough = p.outputs >= int64_t{kTilesPerProcessor} * device.multiprocessors;
  const bool single = plan.vector == 1, has_rest = (shifted || single) && row_rest(p.length) > 0;
  const int64_t whole_units = std::max<int64_t>(1, row_units - has_rest), block_units = shifted ? row_units : whole_units;
  const bool float8 = is_float8(r);
  const auto [most, always] = cut_of(plan, r, units, rows_enough && whole_units > kFewDenseUnits, device);
  const RowTiles of{p.outputs, row_units, block_units, plan.walk, single, float8, device};
  const bool may_be_whole = row_units <= most || !always;
  const bool asked = tuning.tile_leaves > 0, block_takes = of.fit_blocks() && may_be_whole;
  const int64_t without_join = asked || tuning.cluster == 1 || block_takes ? 0 : of.without_join();
  int64_t tile_units = std::min(most, kMaxRowWarps);
  if (asked) {
    tile_units = power_of_two_above(ceil_div(tuning.tile_leaves, unit_leaves));
  } else if (without_join) {
    tile_units = without_join;
  } else if ((block_units <= kOneBlockUnits || (rows_enough && row_units <= kMaxDenseUnits)) && may_be_whole) {
    tile_units = power_of_two_above(row_units);
  } else {
    const auto tiles = [&](int64_t count) { return units / count; };
    while (tile_units < most && 2 * tiles(2 * tile_units) >= 5 * device.multiprocessors) tile_units *= 2;
    while (tile_units > kFewDenseUnits && 5 * tiles(tile_units) < 2 * device.multiprocessors) tile_units /= 2;
    if (shifted && tiles(tile_units) < int64_t{kFewShiftedTiles} * device.multiprocessors) tile_units /= 2;
    // Half as many of eight bytes, of narrower elements: 2^28 float32 to float64 237.3 us, and 238.0; int32 237.1 and 237.7.
    const int64_t most_splits = size_of(r.accumulator) > std::max(size, 4) ? kMaxJoin / 2 : kMaxJoin;
    while (tile_units * most_splits < row_units) tile_units *= 2;
  }
  tile_units = std::min<int64_t>(tile_units, kMaxDenseUnits);
  cut_leaves(t, tile_units * unit_leaves);
  const bool alone = row_alone(t.leaves, unit_leaves, plan.walk) && t.leaves <= t.tile_leaves;
  if (reads_short(plan.vector, plan.thread_elements, size_of(r.accumulator), walk))
    plan.short_units = short_units(p.length, element_bytes(r), t.tile_leaves);
  const bool many_rows = are_many(p, device);
  const int64_t row_bytes = touched_bytes(p, size);
  const bool short_second = whole_units == 2 && is_short_chunk(p.length - kChunk);
  const auto row_warps = [&] {
    if (shifted && float8)
      return static_cast<int>(std::clamp<int64_t>(std::min(tile_units, whole_units) / kFloat8Units, 1, kFloat8Warps));
    if (shifted && size > 1 && short_second && many_rows) return 1;
    const int64_t whole_chunks = p.length / kChunk * kLanes / unit_leaves;
    const int64_t loaded = plan.short_units ? whole_chunks + plan.short_units : whole_units;
    const int64_t taken = std::min(tile_units, loaded);
    if (size == 1 && single && many_rows) return static_cast<int>(std::clamp<int64_t>(taken / kByteWarpUnits, 1, kByteWarps));
    return static_cast<int>(std::min<int64_t>(dense_warps(plan.walk), taken));
  };
  if (!plan.warps) {
    if (alone && (shifted || single) && many_rows) {
      const int64_t rows = power_of_two_above(ceil_div(kBlockBytes, row_bytes));
      plan.warps = static_cast<int>(std::clamp<int64_t>(rows, single ? kSingleWarps : 1, kWarps));
    } else if (alone) {
      plan.warps = busy_warps(kWarps, p.outputs, device);
    } else {
      plan.warps = row_warps();
      const int64_t most_rows = std::min<int64_t>(dense_warps(plan.walk) / plan.warps, kMaxDenseUnits / tile_units);
      if (many_rows && t.leaves <= t.tile_leaves && shares_blocks(plan.vector, plan.thread_elements))
        while (plan.block_rows * row_bytes < kBlockBytes && 2 * plan.block_rows <= most_rows) plan.block_rows *= 2;
      plan.warps *= plan.block_rows;
    }
  }
  plan.warps = std::min(plan.warps, dense_warps(plan.walk));
  t.tile_outputs = alone ? plan.warps : plan.block_rows;
  t.columns = p.outputs;
  t.partial_output_stride = t.splits;  // a row's partial sums side by side
  t.partial_split_stride = 1;
  plan.cluster = cluster_of(plan, asked || without_join, r, device, tuning);
}

void plan_rows(Plan& plan, const Reduction& r, const Tuning& tuning) {
  Tiling& t = plan.tiling;
  plan.vector = 1;
  plan.thread_elements = kDepth;
  const int unit_leaves = row_unit(1, plan.thread_elements, size_of(r.accumulator));  // it converts at run time
  const int64_t row_units = ceil_div(t.leaves, unit_leaves), row_slots = power_of_two_above(row_units);
  int64_t tile_units = kGeneralWarps;
  if (tuning.tile_leaves) tile_units = power_of_two_above(ceil_div(tuning.tile_leaves, unit_leaves));
  else
    while (tile_units * kMaxJoin < row_units) tile_units *= 2;
  if (!plan.warps) plan.warps = static_cast<int>(std::min<int64_t>(kGeneralWarps, tile_units));
  tile_units = std::min<int64_t>(tile_units, int64_t{kWarp} * plan.warps);  // one thread a unit joins them
  if (row_slots <= tile_units) {
    t.tile_outputs = static_cast<int>(tile_units / row_slots);
    cut_leaves(t, row_slots * unit_leaves);
  } else {
    t.tile_outputs = 1;
    cut_leaves(t, tile_units * unit_leaves);
  }
  t.columns = t.tile_outputs;
  t.partial_output_stride = t.splits;  // a row's partial sums side by side
  t.partial_split_stride = 1;
}

// Whether rows are short enough to be joined several at a time.
bool is_short(const Problem& p) {
  return p.reduced.size() == 1 && p.reduced[0].stride == 1 && p.length <= kLanes && p.outputs < kMaxGrid;
}

// The most bytes, up to a vector's, of which rows are whole pieces at aligned addresses.
int row_piece(const Reduction& r) {
  const int size = info(r.in).size;
  uint64_t all = reinterpret_cast<uintptr_t>(r.input) | kVectorBytes | r.problem.length * size;
  for (const KeptDim& d : r.problem.kept) all |= static_cast<uint64_t>(d.stride) * size;
  return static_cast<int>(all & -all);
}

// The threads of a warp that a row has, and how often.
void set_row_width(Plan& plan, int64_t length) {
  const int64_t loads = ceil_div(length, plan.vector);
  plan.row_width = static_cast<int>(std::min<int64_t>(kWarp, power_of_two_above(loads)));
  plan.row_groups = static_cast<int>(power_of_two_above(ceil_div(loads, kWarp)));
}

// Whether short rows can be read as whole pieces.
bool flat_takes(const Reduction& r) {
  const int size = info(r.in).size, piece = row_piece(r);
  return is_typed(r) && is_short(r.problem) && piece >= std::max(4, size) &&
         r.problem.length * size <= int64_t{kWarp} * piece * flat_groups(piece, piece / size);
}

// Elements a load that short rows, every element of which is a leaf, are read in otherwise, in any dims; or 0.
int scattered_vector(const Plan& plan, const Reduction& r) {
  const Problem& p = r.problem;
  if (p.length > kLanes || p.outputs >= kMaxGrid) return 0;
  const bool in_vectors =
      plan.walk == Walk::nested && 2 * p.length > int64_t{flat_width(false, false, plan.vector)} * plan.vector;
  const int vector = in_vectors ? plan.vector : 1;
  return p.length <= int64_t{kWarp} * vector * flat_groups(vector * element_bytes(r), vector) ? vector : 0;
}

// Whether they are: rows longer than a load of each thread only in nested dims, or if they are many, of few words.
bool are_scattered(const Plan& plan, const Reduction& r, const Device& device) {
  const Problem& p = r.problem;
  const int vector = scattered_vector(plan, r), bytes = vector * element_bytes(r);
  const bool many = p.outputs >= int64_t{bytes > 4 ? kManyRows : kScatteredRows} * device.multiprocessors;
  const bool few_words = many && p.length * std::max(4, bytes) <= kScatteredBytes;
  return vector && (p.length <= int64_t{kWarp} * vector || plan.walk == Walk::nested || few_words);
}

void plan_flat(Plan& plan, const Reduction& r, const Device& device, bool in_pieces) {
  const Problem& p = r.problem;
  Tiling& t = plan.tiling;
  plan.vector = in_pieces ? row_piece(r) / info(r.in).size : scattered_vector(plan, r);
  const int bytes = plan.vector * element_bytes(r);
  set_row_width(plan, p.length);
  const bool typed = is_typed(r), pieces = typed && reads_pieces(plan.walk, bytes);
  plan.row_width = std::max(plan.row_width, flat_width(pieces, !typed, plan.vector));
  const int loads = flat_loads(bytes, plan.row_groups, pieces);
  const int warp_rows = loads / plan.row_groups * (kWarp / plan.row_width);
  if (!plan.warps) plan.warps = busy_warps(kWarps, p.outputs, device, warp_rows);
  t.tile_outputs = plan.warps * warp_rows;
  t.tile_leaves = static_cast<int>(power_of_two_above(t.leaves));
  t.columns = p.outputs;
}

// Bytes from row to row, and words of a row.
int64_t ring_pitch(const Reduction& r) {
  const Problem& p = r.problem;
  return (p.kept.empty() ? p.length : p.kept.back().stride) * info(r.in).size;
}
int64_t ring_words(const Reduction& r) { return ceil_div(r.problem.length * info(r.in).size, 4); }

// Whether a thread of the ring kernel can take whole rows.
bool can_take_whole_rows(const Reduction& r) { return ring_pitch(r) % 8 != 0 && ring_words(r) <= kWholeRowWords; }

// Whether it does by itself; and where rows could also be read in pieces of a word.
bool takes_whole_rows(const Reduction& r) {
  const Problem& p = r.problem;
  return can_take_whole_rows(r) && ring_words(r) > kSharedRowWords && !p.kept.empty() && p.kept.back().size >= kWarp;
}
bool takes_pieces_whole(const Reduction& r, int64_t bytes) {
  const int64_t words = ring_words(r), threads = shares_rows(info(r.in).size) ? kByteRowThreads : kWordRowThreads;
  return takes_whole_rows(r) && words > kPieceRowWords && kWarp * words <= threads * power_of_two_above(words) &&
         bytes >= kPieceRowInput;
}

// Whether it does, as it is told to or else.
bool whole_rows(const Reduction& r, const Tuning& tuning, bool otherwise) {
  return tuning.width ? tuning.width == 1 && can_take_whole_rows(r) : otherwise;
}

// Bytes that a block of the ring kernel may have for its stages and what goes with them: those that leave room for kRingBlocks
// of them on a multiprocessor.
int64_t ring_room(const Device& device) {
  return std::min<int64_t>(device.shared_bytes, device.processor_shared_bytes / kRingBlocks - device.reserved_shared_bytes);
}

// Whether bulk copies can bring the rows as they stand, with what lies between them, to be joined several at a time. Other rows
// than these are read in whole pieces.
bool ring_takes_rows(const Reduction& r, const Device& device) {
  const Problem& p = r.problem;
  const int size = info(r.in).size;
  return device.early && is_typed(r) && is_short(p) && (shares_rows(size) || (rings_rows(size) && can_take_whole_rows(r))) &&
         (p.kept.empty() || 4 * p.kept.back().stride <= 5 * p.length);
}

// Whether these are so many.
bool is_worth_ring(const Problem& p, int size) {
  return p.outputs * p.length >= (size == 1 ? kRingByteElements : kRingElements);
}

void plan_ring_rows(Plan& plan, const Reduction& r, const Device& device, const Tuning& tuning) {
  const Problem& p = r.problem;
  const int size = info(r.in).size;
  const int64_t pitch = ring_pitch(r);
  plan.vector = 4 / size;
  set_row_width(plan, p.length);
  if (whole_rows(r, tuning, takes_whole_rows(r)) || !shares_rows(size)) plan.row_width = 0;

  // Rows of a stage: several times those that are joined at once, but no more than leave work for all warps.
  const int64_t at_once = plan.row_width ? int64_t{kLoads} * (kWarp / plan.row_width) / plan.row_groups : kWarp;
  const int64_t bytes = tuning.stage_bytes ? tuning.stage_bytes : kStageBytes;
  int64_t rows = std::max<int64_t>(1, bytes / std::max<int64_t>(1, pitch));
  if (!plan.row_width && !tuning.stage_bytes) rows = std::max(rows, at_once);
  if (rows > at_once) rows -= rows % at_once;
  const int64_t warps = int64_t{kRingBlocks} * kMaxRingWarps * device.multiprocessors;
  rows = std::min(rows, std::max<int64_t>(kWarp, ceil_div(p.outputs, warps)));

  RingShape& ring = plan.ring;
  ring.pitch = static_cast<int>(pitch);
  ring.stages = tuning.stages ? tuning.stages : kRingStages;
  // Rows may begin anywhere in a line, and the last read may go beyond their end.
  ring.stage_bytes = static_cast<int>(ceil_div((rows - 1) * pitch + p.length * size + kGranule + kLine, kLine) * kLine);
  const int most = plan.warps ? plan.warps : kMaxRingWarps;
  const int64_t room = ring_room(device);
  const auto warps_with_room = [&] {
    return std::min(kRingBytes / (int64_t{ring.stages} * ring.stage_bytes), room / ring.shared_bytes(1));
  };
  // Many rings of one stage are as good as few of several: (2^19, 65) float32 35.6 us with eight, 42.4 with four of two stages.
  if (!tuning.stages && !plan.row_width && warps_with_room() < most) ring.stages = 1;
  plan.warps = static_cast<int>(std::clamp<int64_t>(warps_with_room(), 1, most));
  if (ring.shared_bytes(plan.warps) > device.shared_bytes)
    throw std::invalid_argument("tuning: " + std::to_string(ring.stages) + " stages of " + std::to_string(ring.stage_bytes) +
                                " bytes are more than the " + std::to_string(device.shared_bytes) +
                                " bytes of shared memory that a block may have");

  Tiling& t = plan.tiling;
  t.tile_outputs = static_cast<int>(rows);
  t.tile_leaves = kLanes;
  t.columns = p.kept.empty() ? 1 : p.kept.back().size;
}

void plan_expanded(Plan& plan, const Problem& p) {
  Tiling& t = plan.tiling;
  plan.vector = 1;
  if (!plan.warps) plan.warps = kExpandedWarps;
  t.tile_outputs = plan.warps * kWarp;
  t.tile_leaves = static_cast<int>(power_of_two_above(t.leaves));
  t.columns = p.outputs;
}

// Whether rows lie side by side, a few elements each, aligned as vectors.
bool tiny_takes(const Reduction& r) {
  const Problem& p = r.problem;
  if (!is_typed(r) || p.reduced.size() != 1 || p.kept.size() != 1 || p.length < 2) return false;
  const int size = info(r.in).size, vector = kVectorBytes / size;
  // Neighbours must write whole lines, too: int8 (2^24, 2), whose sums are int64, took 144 us instead of 46.
  if (size == 1 || vector == 1 || vector * info(r.out).size > kVectorBytes || !is_direct(r.accumulator, r.out)) return false;
  return p.length <= tiny_length(vector) && p.reduced[0].stride == 1 && p.kept[0].stride == p.length &&
         reinterpret_cast<uintptr_t>(r.input) % kVectorBytes == 0;
}

void plan_tiny(Plan& plan, const Reduction& r, const Device& device) {
  const Problem& p = r.problem;
  Tiling& t = plan.tiling;
  plan.vector = kVectorBytes / info(r.in).size;
  const int warp_outputs = kWarp * tiny_runs(static_cast<int>(p.length)) * plan.vector;
  if (!plan.warps) plan.warps = busy_warps(kTinyWarps, p.outputs, device, warp_outputs);
  t.tile_outputs = plan.warps * warp_outputs;
  t.tile_leaves = static_cast<int>(power_of_two_above(t.leaves));
  t.columns = p.outputs;
}

void plan_thin(Plan& plan, const Reduction& r, const Device& device) {
  const Problem& p = r.problem;
  Tiling& t = plan.tiling;
  // Results wider than what is read are the most of it, and neighbours write whole lines only of single ones: int8 (2, 2^26),
  // whose sums are int64, 179 us, and 540 in vectors; (8, 2^24) 98.8 and 145.
  const int written = written_bytes(r);
  if (plan.vector * written > kVectorBytes && p.length * info(r.in).size <= written) plan.vector = 1;
  plan.thread_elements = static_cast<int>(power_of_two_above(std::max<int64_t>(2, p.length)));
  if (p.length > kLoads && !wholes_columns(plan.vector)) plan.vector = 1;
  const int runs = p.length > kLoads ? 1 : thin_runs(plan.vector, plan.thread_elements);
  const int warp_outputs = runs * kWarp * plan.vector;
  if (!plan.warps) plan.warps = busy_warps(kWarps, p.outputs, device, warp_outputs);
  t.tile_outputs = plan.warps * warp_outputs;
  t.tile_leaves = static_cast<int>(power_of_two_above(t.leaves));
  t.columns = p.outputs;
}

// Whether columns are read in vectors, a stride from row to row.
bool panels_take(const Plan& plan, const Problem& p) {
  return plan.vector > 1 && plan.walk != Walk::nested && !p.kept.empty() && p.length > kLoads && p.length <= kMaxPanelRows &&
         p.kept.back().size <= kMaxGrid / 2 && p.outputs / p.kept.back().size <= kMaxGridDepth;
}

void plan_columns(Plan& plan, const Reduction& r, const Device& device, const Tuning& tuning) {
  const Problem& p = r.problem;
  Tiling& t = plan.tiling;
  const int size = info(r.in).size;
  t.columns = p.kept.back().size;
  plan.thread_elements = p.length <= kLanes ? 1 : plan.vector == 1 || plan.walk == Walk::nested ? thread_elements(p) : kLoads;
  // One line side by side; two where there are leaves for few warps.
  const int line = std::max(1, kLine / (plan.vector * size)), depth = kLoads / plan.thread_elements;
  const int64_t vectors = ceil_div(t.columns, plan.vector);
  const bool two_lines = t.leaves * line < int64_t{kFewColumnWarps} * kWarp * depth;
  const int64_t side = tuning.width ? tuning.width : two_lines ? 2 * line : line;
  const int width = static_cast<int>(power_of_two_above(std::min({side, vectors, int64_t{kWarp}})));
  plan.warp_columns = width;
  t.tile_outputs = width * plan.vector;
  const int64_t column_tiles = ceil_div(vectors, width);

  const int many = column_batches(plan.vector, plan.walk == Walk::nested);
  const auto unit_leaves = [&](int batches) { return int64_t{kWarp / width} * depth * batches; };
  const auto tiles = [&](int64_t leaves) { return p.outputs / t.columns * column_tiles * ceil_div(t.leaves, leaves); };
  const int64_t enough = int64_t{kColumnTiles} * device.multiprocessors / 2;
  const int64_t many_leaves = kWarps * unit_leaves(many);
  const bool takes_many = t.leaves >= many_leaves && tiles(many_leaves) >= device.multiprocessors;
  plan.batches = (tuning.batches ? tuning.batches > 1 : takes_many) ? many : 1;
  const int64_t unit = unit_leaves(plan.batches), whole = power_of_two_above(ceil_div(t.leaves, unit));
  const int64_t most = std::min<int64_t>(whole, column_slots(plan.vector) / width);

  // Units of a tile: as many as leave tiles enough; all of them where that saves the join at little cost; fewer of a small
  // input.
  int64_t units = std::min<int64_t>(kWarps, most);
  if (tuning.tile_leaves) {
    units = std::min(power_of_two_above(ceil_div(tuning.tile_leaves, unit)), most);
  } else {
    const auto busy = [&](int64_t count) { return 3 * tiles(count * unit) >= device.multiprocessors; };
    while (units < most && tiles(2 * units * unit) >= enough) units *= 2;
    if (whole == most && (whole <= kWarps || (whole <= 4 * units && busy(whole)))) units = whole;
    else
      while (units > 1 && !busy(units)) units /= 2;
  }
  const int64_t count = tiles(units * unit);
  const bool one_wave = count >= enough && count < int64_t{kManyColumnTiles} * device.multiprocessors;
  if (!plan.warps) plan.warps = one_wave && (units > kWarps || plan.batches > 1) ? kFewColumnWarps : kWarps;
  plan.warps = static_cast<int>(std::min<int64_t>(plan.warps, units));
  cut_leaves(t, units * unit);
  t.partial_output_stride = 1;  // neighbouring columns write neighbouring partial sums
  t.partial_split_stride = p.outputs;
}

// Bytes of a lane's sum (Lane in primitives.cuh).
int lane_bytes(const Reduction& r) {
  return r.accumulator == Accumulator::i64 && info(r.in).size <= 2 ? 4 : size_of(r.accumulator);
}

// The threads of a warp side by side for rows of so many vectors: as many as asked for, but few beyond the last vector; or 0.
int panel_width(int64_t vectors, int most) {
  const int64_t width = std::min<int64_t>(most, power_of_two_above(vectors));
  return 8 * ceil_div(vectors, width) * width <= 9 * vectors ? static_cast<int>(width) : 0;
}

// Whether rows are whole lines, or halves of bytes; other narrow rows are better read as pieces of memory: (2^20, 64) float32
// 63.1 us, and 64.9 so; float8 20.5 and 22.1.
bool are_whole_lines(const Reduction& r, int vector) {
  const int64_t columns = r.problem.kept.back().size;
  const int size = info(r.in).size;
  return columns * size % (size == 1 ? kLine / 2 : kLine) == 0 && panel_width(columns / vector, kLineWidth);
}

// Columns in tiles of the panels kernel: `width` threads of a warp side by side, and units of leaves below each other.
struct PanelTiles {
  const Plan& plan;  // what it says so far: walk, vector, elements and columns
  const Problem& problem;
  const Device& device;
  int size, sum_bytes;  // bytes of an element, and of a vector of lane sums
  bool order_free, float8;

  PanelTiles(const Plan& plan, const Reduction& r, const Device& device)
      : plan(plan),
        problem(r.problem),
        device(device),
        size(info(r.in).size),
        sum_bytes(plan.vector * lane_bytes(r)),
        order_free(r.accumulator == Accumulator::i64),
        float8(is_float8(r)) {}

  bool aligned() const { return plan.walk != Walk::shifted && plan.walk != Walk::spread; }
  // Elements before the first column that shifted vectors may begin with.
  int before() const { return plan.walk == Walk::shifted ? plan.vector - 1 : 0; }
  int64_t vectors() const { return ceil_div(plan.tiling.columns + before(), plan.vector); }

  int64_t unit_leaves(int width, int batches) const {
    return int64_t{kWarp / width} * (kLoads / plan.thread_elements) * batches;
  }
  int64_t tiles(int width, int64_t leaves) const {
    const Tiling& t = plan.tiling;
    return problem.outputs / t.columns * ceil_div(t.columns, width * plan.vector - before()) * ceil_div(t.leaves, leaves);
  }
  bool are_enough(int64_t tiles, int least = kPanelTiles) const { return 5 * tiles >= int64_t{least} * device.multiprocessors; }
  // Tiles that run at a time.
  int64_t at_once(int warps = kWarps) const {
    return int64_t{panel_wave(sum_bytes / 4, plan.walk) / warps} * device.multiprocessors;
  }
  // Whether a good part of the multiprocessors would have one tile less than others, if tiles are few; or of the places for all
  // that run at a time, unless they are many.
  bool are_uneven(int64_t tiles) const {
    const int64_t step = are_few(tiles, device) ? device.multiprocessors : at_once();
    const int64_t places = ceil_div(tiles, step) * step;
    return places <= 8 * at_once() && 100 * tiles < kEven * places;
  }
  // Whether a column's splits are better a cluster than joined.
  bool clusters(int width, int64_t leaves, int warps) const {
    const int64_t splits = ceil_div(plan.tiling.leaves, leaves), count = tiles(width, leaves);
    if (splits > kFewSplits) return 100 * count <= int64_t{kClusterShare} * device.multiprocessors;
    return are_few(count, device) && count <= at_once(warps);
  }
  bool may_run() const { return panel_runs(plan.vector, sum_bytes / 4, plan.thread_elements, order_free, plan.walk); }
  // Units of a tile, by itself: as many as have room in shared memory, and as the block's threads join at the end.
  int64_t usual_units(int warps, int width) const {
    return std::min<int64_t>(kPanelBytes / (width * sum_bytes), (warps * kWarp << kLogPanelRows) / (width * plan.vector));
  }
  // Whether whole columns are about as many tiles as run at a time: in runs, and small blocks, they need no join. (64, 4096,
  // 1024) dim 1 bfloat16 119.1 us, and 121.5; (1024, 65536) 32.0 and 32.7, (2048, 65536) 62.6 and 65.1 in halves. But not where
  // most leaves have an element less than others: (600, 65536) 24.5 and 21.6.
  bool are_full_wave(int width) const {
    const int64_t whole = tiles(width, plan.tiling.leaves), wave = at_once();
    return may_run() && plan.tiling.leaves <= kLanes && whole <= wave && 4 * whole > 3 * wave &&
           4 * problem.length >= int64_t{3} * plan.thread_elements * kLanes;
  }
  PanelShape shape(int64_t units, int warps, int width) const {
    PanelShape s{};
    s.units = static_cast<int>(units);
    s.runs = may_run() && units > usual_units(warps, width);
    s.rows = order_free || s.runs ? warps : s.units;
    s.kept_rows = s.runs ? warps * __builtin_ctz(s.units / warps) : s.rows;
    s.parts = std::min(std::clamp(warps * kWarp / (width * plan.vector), std::max(1, s.rows >> kLogPanelRows), kWarp), s.rows);
    return s;
  }
  // And at most: where the order is free, or in runs, they need less room.
  int64_t most_units(int warps, int width, int batches) const {
    int64_t units = power_of_two_above(kMaxPanelLeaves / unit_leaves(width, batches));
    while (units > warps && shape(units, warps, width).kept_rows * width * sum_bytes > kPanelBytes) units /= 2;
    return units;
  }

  // Rows are a line each, one after the other.
  bool are_lines() const {
    return size > 1 && aligned() && vectors() == kLineWidth && problem.reduced[0].stride == plan.tiling.columns;
  }
  // Sums are wider than elements, and the input is not that large.
  bool have_wide_sums() const { return aligned() && plan.vector < 8 && sum_bytes > kVectorBytes && plan.bytes < kLargeColumns; }
  // Some leaves have an element less than others: all chunks' are of so many, or the last's, half of a chunk and more, or the
  // last's of a few.
  bool are_ragged() const { return size <= 2 && problem.length % kChunk % kLanes != 0; }
  bool half_ragged() const { return are_ragged() && 2 * (problem.length % kChunk) > kChunk; }
  bool end_ragged() const {
    return half_ragged() && plan.walk != Walk::shifted && problem.length > kChunk && problem.length < 8 * kChunk;
  }

  // Batches that a thread takes where it takes several. Where many leaves have an element less than others, loads have
  // conditions, and several batches are slower than one: (1000, 65536) bfloat16 38.9 us, and 33.0; (4000, 16384) 34.9 and 33.4,
  // float8 22.6 and 20.1. If these are of the last of several chunks, tiles are small as well, for only some of them are slow:
  // (20000, 4096) bfloat16 46.5 us, and 41.2; float8 29.9 and 23.8.
  int many_batches() const {
    if (end_ragged() || (are_ragged() && problem.length < kChunk)) return 1;
    return panel_batches(plan.vector, sum_bytes / 4, plan.thread_elements, order_free, plan.walk);
  }

  // Leaves of a tile where a column's are as few as a cluster has. Whether such tiles may be one line wide: of two bytes an
  // element, where rows are whole lines.
  int64_t cluster_leaves() const { return power_of_two_above(ceil_div(plan.tiling.leaves, kFewSplits)); }
  bool may_cluster_lines() const {
    return aligned() && plan.vector == 8 && !order_free && !end_ragged() && plan.bytes < kLargeColumns &&
           problem.reduced[0].stride * size % kLine == 0 &&
           cluster_leaves() <= usual_units(kWarps, kLineWidth) * unit_leaves(kLineWidth, many_batches());
  }

  // Two lines side by side where that leaves tiles enough, but of bytes, which have many sums, and of wide sums one: (4096,
  // 16384) int32 62.8 us, and 64.3; (40000, 640) 26.2 and 28.6. Also one where tiles would be little more than run at a time:
  // (1024, 81920) bfloat16 40.4 us, and 45.0 with two. Four of shifted columns, which read one vector more than they have:
  // (16384, 4097) bfloat16 36.1 us, and 42.4 with two.
  // Of short columns, whose tiles are of little else, as many as there are: (9, 10^6) float64 21.5 us, and 39.5 with two lines;
  // (24, 10^6) bfloat16 14.5 and 18.0.
  int best_width() const {
    if (problem.length <= kWarp) return static_cast<int>(std::min<int64_t>(kWarp, power_of_two_above(vectors())));
    const int most = size == 1 || have_wide_sums() ? kLineWidth : aligned() ? 2 * kLineWidth : kWarp;
    const int width = panel_width(vectors(), most),
              one = static_cast<int>(std::min<int64_t>(kLineWidth, power_of_two_above(vectors())));
    if (width == 0 || !are_enough(tiles(width, kWarps * unit_leaves(width, 1)))) return one;
    // And one where that makes clusters, of twice as long tiles: (16384, 4096) bfloat16 33.0 us, and 33.6 with a join.
    const int64_t quarter = cluster_leaves(), clustered = tiles(one, quarter);
    if (device.clusters && may_cluster_lines() && clusters(one, quarter, kWarps) && are_enough(clustered) &&
        !are_uneven(clustered))
      return one;
    const int64_t whole = tiles(width, plan.tiling.leaves), wave = at_once();
    return plan.walk != Walk::spread && whole > wave && 2 * whole < 3 * wave ? one : width;
  }

  // Whether tiles of so many leaves are more than run at a time, but few enough to do so in small blocks.
  bool fit_small_blocks(int width, int batches, int64_t units) const {
    const int64_t count = tiles(width, units * unit_leaves(width, batches)), places = at_once(kFewColumnWarps);
    const bool few = 100 * count <= (float8 ? kMostFloat8Wave : kMostWave) * places;
    const bool has_work = float8 || plan.thread_elements >= 4;
    return aligned() && has_work && count > at_once() && few && units <= usual_units(kFewColumnWarps, width);
  }
  // Units of a tile, kLargeLeaves at least, that do; or 0. In one wave the slower tiles of a ragged end would be the last:
  // (113961, 1024) float16 63.8 us, and 58.3 in short tiles.
  int64_t small_block_units(int width, int batches, int64_t most) const {
    const bool narrow = problem.reduced[0].stride * size < kSmallBlockPitch;
    if (size == 1 || have_wide_sums() || narrow || (batches > 1 && half_ragged())) return 0;
    int64_t units = ceil_div(kLargeLeaves, unit_leaves(width, batches));
    while (units < most && !fit_small_blocks(width, batches, units)) units *= 2;
    return fit_small_blocks(width, batches, units) ? units : 0;
  }

  // Units of a tile, up to `most`: as many as leave tiles enough; fewer of large columns, and where shares would be unequal; of
  // a small input all, where that saves the join at little cost, or as few as keep multiprocessors busy.
  int64_t best_units(int width, int batches, int64_t most) const {
    const int64_t unit = unit_leaves(width, batches), whole = power_of_two_above(ceil_div(plan.tiling.leaves, unit));
    const auto count = [&](int64_t units) { return tiles(width, units * unit); };
    const auto busy = [&](int64_t units) { return 3 * count(units) >= device.multiprocessors; };
    const bool unequal = plan.walk == Walk::spread || end_ragged() || have_wide_sums();
    const bool fast = aligned() && !are_ragged() && (plan.thread_elements < kDepth || plan.bytes < kFloat8Columns);
    const bool more = float8 && width >= kLineWidth && !fast;
    const int least = more ? kFloat8PanelTiles : batches > 1 && aligned() ? kPanelTiles : kFewPanelTiles;
    const int64_t wanted = are_lines() ? kLineLeaves / unit : unequal ? kUnequalUnits : most;
    // Of wide sums also more, where that leaves two tiles a multiprocessor.
    const auto two_each = [&](int64_t units) { return are_few(count(units), device) && are_enough(count(units)); };
    int64_t units = most;
    while (units > 1 && units > wanted && !(have_wide_sums() && two_each(units))) units /= 2;
    while (units > kWarps && !are_enough(count(units), least)) units /= 2;
    const bool few = are_few(count(units), device);
    const bool large = size > 1 && plan.bytes >= kLargeColumns && problem.reduced[0].stride * size >= kLargePitch && !few;
    const bool uneven = (whole > 2 * units ? 1 : 2) * plan.bytes >= kUnevenColumns && are_uneven(count(units));
    const bool may_be_short = aligned() && plan.thread_elements >= 4;
    const int64_t in_small_blocks = may_be_short && uneven ? small_block_units(width, batches, most) : 0;
    if (in_small_blocks) return in_small_blocks;
    if (may_be_short && (large || uneven))
      units = std::min(units, std::max<int64_t>(kWarps, (size == 1 ? 2 : 1) * kLargeLeaves / unit));
    const bool clusters = device.clusters && few;  // which need no join either
    if (plan.bytes <= kSmallColumns && !clusters && units <= kWarps && whole <= std::min(4 * units, most) && busy(whole))
      return whole;
    while (units > 1 && units < whole && !busy(units)) units /= 2;
    return units;
  }
};

// Whether a thread takes whole columns: where these are many, and blocks of other kernels would be of little each.
bool takes_whole_columns(Plan plan, const Reduction& r, const Device& device) {
  const Problem& p = r.problem;
  if (p.length > kLanes || p.outputs >= kMaxGrid) return false;
  const int size = info(r.in).size;
  const int64_t neighbours = p.kept.back().size;
  const bool many = p.outputs >= int64_t{kWholeColumns} * device.multiprocessors, panels = panels_take(plan, p);
  const bool single = plan.vector == 1, odd = plan.walk == Walk::shifted || plan.walk == Walk::spread;
  if (many && (single ? p.length <= kWholeLength : odd && neighbours <= kFewNeighbours)) return true;
  int64_t columns = kLine / size;  // of a block
  if (panels) {
    plan.tiling.columns = neighbours;
    plan.thread_elements = 1;
    const PanelTiles of(plan, r, device);
    columns = of.best_width() * plan.vector - of.before();
  }
  const int64_t blocks = p.outputs / neighbours * ceil_div(neighbours, columns);
  const int64_t element = wholes_columns(plan.vector) ? size : 2 * size;  // bytes are read one by one
  const int64_t bytes = std::min(columns, neighbours) * (p.length * element + written_bytes(r));
  return bytes < (plan.bytes < kLargeColumns ? kWholeBytes : kBlockBytes) && blocks >= kWholeBlocks * p.length;
}

void plan_panels(Plan& plan, const Reduction& r, const Device& device, const Tuning& tuning) {
  const Problem& p = r.problem;
  Tiling& t = plan.tiling;
  t.columns = p.kept.back().size;
  plan.thread_elements = p.length <= kLanes ? 1 : thread_elements(p);
  const PanelTiles of(plan, r, device);
  const int many = of.many_batches();
  const int64_t widest = power_of_two_above(of.vectors());
  int width =
      tuning.width ? static_cast<int>(std::min<int64_t>({kWarp, power_of_two_above(tuning.width), widest})) : of.best_width();
  const auto batches = [&] {
    const int64_t leaves = kWarps * of.unit_leaves(width, many);
    const bool takes_many =
        width >= kLineWidth && !of.are_lines() && t.leaves >= leaves && of.are_enough(of.tiles(width, leaves));
    return (tuning.batches ? tuning.batches > 1 : takes_many) ? many : 1;
  };
  int warps = plan.warps ? plan.warps : plan.walk == Walk::shifted && of.size == 1 ? kFewColumnWarps : kWarps;
  // Where splits would be more than a grid is deep: narrower tiles, which are longer.
  const auto too_deep = [&] {
    return ceil_div(t.leaves, of.most_units(warps, width, batches()) * of.unit_leaves(width, batches())) > kMaxGridDepth;
  };
  while (too_deep()) width /= 2;
  plan.batches = batches();
  plan.warp_columns = width;
  t.tile_outputs = width * plan.vector - of.before();
  if (plan.walk == Walk::spread)
    t.tile_outputs = static_cast<int>(ceil_div(t.columns, ceil_div(t.columns, t.tile_outputs)));  // even tiles

  const int64_t unit = of.unit_leaves(width, plan.batches);
  const int64_t most = std::min(power_of_two_above(ceil_div(t.leaves, unit)), of.most_units(warps, width, plan.batches));
  const bool full_wave = of.are_full_wave(width) && most * unit >= t.leaves;
  int64_t units = tuning.tile_leaves ? std::min(power_of_two_above(ceil_div(tuning.tile_leaves, unit)), most)
                  : full_wave        ? most
                                     : of.best_units(width, plan.batches, std::min(most, of.usual_units(warps, width)));
  while (units < most && ceil_div(t.leaves, units * unit) > kMaxGridDepth) units *= 2;

  const bool small = (full_wave && units * unit >= t.leaves) || of.fit_small_blocks(width, plan.batches, units);
  if (!tuning.warps && small) warps = std::min(warps, kFewColumnWarps);
  plan.warps = static_cast<int>(std::min<int64_t>(warps, units));
  plan.panel = of.shape(units, plan.warps, width);
  cut_leaves(t, units * unit);
  // Neighbouring columns write neighbouring partial sums, but those of few columns stand as the join reads them.
  const bool by_column = 2 * p.outputs <= t.splits;
  t.partial_output_stride = by_column ? t.splits : 1;
  t.partial_split_stride = by_column ? 1 : p.outputs;
  plan.cluster = cluster_of(plan, of.clusters(width, t.tile_leaves, plan.warps), r, device, tuning);
  plan.panel.late =
      t.splits > 1 && plan.cluster == 1 && plan.streams && panel_late(plan.vector, of.sum_bytes / 4, of.order_free);
}

// Whether columns are few, and their rows dense and aligned as pieces of memory.
bool narrow_takes(const Reduction& r) {
  const Problem& p = r.problem;
  if (!is_typed(r) || p.kept.empty() || p.reduced.size() != 1) return false;
  const KeptDim& columns = p.kept.back();
  if (columns.stride != 1 || p.reduced[0].stride != columns.size) return false;
  if (columns.size * kNarrowLeaves * lane_bytes(r) > kNarrowBytes) return false;
  // The kernel counts tiles in 32 bits.
  if (p.outputs / columns.size * ceil_div(leaf_count(p.length), kNarrowLeaves) > kMaxGrid) return false;
  if (reinterpret_cast<uintptr_t>(r.input) % kGranule != 0) return false;
  return std::all_of(p.kept.begin(), p.kept.end() - 1,
                     [&](const KeptDim& d) { return d.stride * info(r.in).size % kGranule == 0; });
}

void plan_narrow(Plan& plan, const Reduction& r, const Device& device, const Tuning& tuning) {
  const Problem& p = r.problem;
  Tiling& t = plan.tiling;
  const int size = info(r.in).size, width = static_cast<int>(p.kept.back().size);
  const auto tiles = [&](int64_t leaves) { return p.outputs / width * ceil_div(t.leaves, leaves); };
  plan.vector = kVectorBytes / size;
  plan.thread_elements = kDepth;
  const int64_t most = std::min<int64_t>(kLanes, tuning.tile_leaves ? tuning.tile_leaves : t.leaves);
  int run = kNarrowLeaves;
  while (run < most && 2 * run * width * lane_bytes(r) <= kNarrowBytes &&
         (tuning.tile_leaves || run * width * size < kNarrowPiece || tiles(2 * run) >= device.multiprocessors))
    run *= 2;
  plan.batches = tuning.batches ? std::min<int>(power_of_two_above(tuning.batches), kMaxBatches) : 1;
  while (!tuning.batches && plan.batches < kMaxBatches && run * plan.batches < t.leaves &&
         tiles(2 * run * plan.batches) >= int64_t{size == 8 ? 2 * kNarrowTiles : kNarrowTiles} * device.multiprocessors)
    plan.batches *= 2;
  if (!plan.warps) {
    // A run's vectors in as few rounds as they can, but all tiles at a time if small blocks are.
    const int64_t vectors = int64_t{run} * width / plan.vector, count = tiles(run * plan.batches);
    const auto rounds = [&](int warps) { return ceil_div(vectors, warps * kWarp); };
    const int wave = narrow_wave(plan.vector * lane_bytes(r) / 4);
    plan.warps = static_cast<int>(ceil_div(vectors, rounds(kNarrowWarps) * kWarp));
    for (int warps = kNarrowWarps + 1; warps <= kMaxNarrowWarps; ++warps)
      if (rounds(warps) < rounds(plan.warps) && count <= int64_t{wave / warps} * device.multiprocessors) plan.warps = warps;
  }
  t.tile_outputs = width;
  cut_leaves(t, run * plan.batches);
  t.columns = width;
  t.partial_output_stride = t.splits;  // few a tile, so that the join may read them in whole lines
  t.partial_split_stride = 1;
}

// Calls with the key and the value of each item of "key=value,key=value".
template <class Take>
void for_each_setting(const std::string& text, const Take& take) {
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    const size_t equals = item.find('=');
    take(item.substr(0, equals), equals == std::string::npos ? "" : item.substr(equals + 1));
  }
}

int64_t number_of(const char* what, const std::string& key, const std::string& value) {
  if (value.empty() || value.size() > 9 || value.find_first_not_of("0123456789") != std::string::npos)
    throw std::invalid_argument(std::string(what) + ": '" + key + "' needs a number, not '" + value + "'");
  return std::stoll(value);
}

// The blocks of a plan: a tile each, or where they take tile after tile, as tiles are numbered, perhaps fewer.
Grid grid_of(const Plan& plan, const Device& device, const Tuning& tuning) {
  const Tiling& t = plan.tiling;
  const uint32_t cluster = plan.cluster;
  int64_t most = tuning.grid ? tuning.grid : kMaxGrid;
  const auto take = [&](int64_t tiles, int64_t limit) {
    const int64_t blocks = std::min({tiles, limit, most});
    most = blocks < tiles ? 1 : most / blocks;
    return static_cast<uint32_t>(blocks);
  };
  Grid grid;
  switch (plan.kernel) {
    case Kernel::dense:
    case Kernel::flat:
      if (t.splits == 1) return {t.column_tiles, 1, 1};
      return {t.splits, static_cast<uint32_t>(std::min<int64_t>(t.outputs, kMaxDenseDepth)),
              static_cast<uint32_t>(ceil_div(t.outputs, kMaxDenseDepth)), cluster, 1};
    case Kernel::panels: return {t.column_tiles, t.splits, t.batches, 1, cluster};
    case Kernel::rows:
    case Kernel::narrow: grid.x = take(t.tiles, kMaxGrid); break;
    case Kernel::ring_rows: grid.x = take(ceil_div(t.tiles, plan.warps), int64_t{kRingBlocks} * device.multiprocessors); break;
    default:
      grid.x = take(t.column_tiles, kMaxGrid);
      grid.y = take(t.splits, kMaxGridDepth);
      grid.z = take(t.batches, kMaxGridDepth);
  }
  return grid;
}

}  // namespace

Device Device::parse(const std::string& text) {
  Device device;
  for_each_setting(text, [&](const std::string& key, const std::string& value) {
    const int64_t number = number_of("device", key, value);
    if (key == "multiprocessors") device.multiprocessors = static_cast<int>(number);
    else if (key == "l2_bytes") device.l2_bytes = number;
    else if (key == "shared_bytes") device.shared_bytes = static_cast<int>(number);
    else if (key == "processor_shared_bytes") device.processor_shared_bytes = static_cast<int>(number);
    else if (key == "reserved_shared_bytes") device.reserved_shared_bytes = static_cast<int>(number);
    else if (key == "early") device.early = number != 0;
    else if (key == "clusters") device.clusters = number != 0;
    else throw std::invalid_argument("device: there is no key '" + key + "'");
  });
  return device;
}

std::string Device::json() const {
  std::ostringstream s;
  s << "{\"multiprocessors\": " << multiprocessors << ", \"l2_bytes\": " << l2_bytes << ", \"shared_bytes\": " << shared_bytes
    << ", \"processor_shared_bytes\": " << processor_shared_bytes << ", \"reserved_shared_bytes\": " << reserved_shared_bytes
    << ", \"early\": " << (early ? "true" : "false") << ", \"clusters\": " << (clusters ? "true" : "false") << "}";
  return s.str();
}

Tuning Tuning::parse(const std::string& text) {
  Tuning tuning;
  for_each_setting(text, [&](const std::string& key, const std::string& value) {
    if (key == "kernel") {
      const auto* found = std::find(std::begin(kKernelNames), std::end(kKernelNames), value);
      if (found == std::end(kKernelNames)) throw std::invalid_argument("tuning: there is no kernel '" + value + "'");
      tuning.kernel = static_cast<int>(found - std::begin(kKernelNames));
      return;
    }
    int* field = key == "multiprocessors" ? &tuning.multiprocessors
                 : key == "vector"        ? &tuning.vector
                 : key == "warps"         ? &tuning.warps
                 : key == "tile_leaves"   ? &tuning.tile_leaves
                 : key == "batches"       ? &tuning.batches
                 : key == "grid"          ? &tuning.grid
                 : key == "stages"        ? &tuning.stages
                 : key == "stage_bytes"   ? &tuning.stage_bytes
                 : key == "width"         ? &tuning.width
                 : key == "keep"          ? &tuning.keep
                 : key == "cluster"       ? &tuning.cluster
                                          : nullptr;
    if (!field) throw std::invalid_argument("tuning: there is no key '" + key + "'");
    *field = static_cast<int>(number_of("tuning", key, value));
  });
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
  const bool near = fits_fast_nest(p.kept, p.outputs) && fits_fast_nest(p.reduced, p.length);
  return plain && near && (r.accumulator == i.accumulator || r.accumulator == i.wide);
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
  plan.streams = tuning.keep ? tuning.keep != 1 : is_streamed(r, device);
  plan.early = device.early;

  const bool by_columns = columnwise(p);
  const int size = info(r.in).size;
  const Walk walk = p.reduced.size() > 1                            ? Walk::nested
                    : p.reduced.empty() || p.reduced[0].stride == 1 ? Walk::dense
                                                                    : Walk::linear;
  plan.walk = walk;
  plan.vector = is_typed(r) && tuning.vector != 1 ? vector_width(p, by_columns, size, r.input) : 1;
  if (plan.vector == 1 && tuning.vector != 1) plan.walk = unaligned_walk(r, by_columns, walk);
  const bool unaligned = plan.walk != walk;
  if (unaligned) plan.vector = kVectorBytes / size;

  const bool narrow = by_columns && tuning.vector != 1 && narrow_takes(r);
  if (by_columns) {
    const bool panels = panels_take(plan, p), whole_lines = panels && are_whole_lines(r, plan.vector);
    plan.kernel = p.kept.empty() || p.length <= kLoads || takes_whole_columns(plan, r, device) ? Kernel::thin
                  : narrow && !whole_lines && p.length > kLanes && plan.bytes >= kNarrowInput  ? Kernel::narrow
                  : panels                                                                     ? Kernel::panels
                                                                                               : Kernel::columns;
  } else {
    // Of short rows too many for flat, a thread takes each.
    plan.kernel = p.outputs >= kMaxGrid && p.length <= kLanes ? Kernel::thin
                  : are_scattered(plan, r, device)            ? Kernel::flat
                  : dense_takes(p)                            ? Kernel::dense
                                                              : Kernel::rows;
    if (plan.kernel == Kernel::thin) plan.vector = 1;
  }
  const bool ring = !by_columns && ring_takes_rows(r, device);
  const bool expanded = p.reduced.size() == 1 && p.reduced.back().stride == 0 && t.leaves <= kMaxGrid / 2;
  if (tuning.kernel < 0 && ring && shares_rows(size)) {
    if (is_worth_ring(p, size)) plan.kernel = Kernel::ring_rows;
    else if (p.length <= kShortRow) plan.kernel = Kernel::flat;
  }
  const bool in_pieces = !by_columns && tuning.vector != 1 && flat_takes(r);
  const bool pieces_whole = ring && whole_rows(r, tuning, takes_pieces_whole(r, plan.bytes));
  if (tuning.kernel < 0 && in_pieces) plan.kernel = Kernel::flat;
  if (tuning.kernel < 0 && pieces_whole) plan.kernel = Kernel::ring_rows;
  const bool tiny = !by_columns && tiny_takes(r);
  if (tuning.kernel < 0 && tiny && tuning.vector != 1) plan.kernel = Kernel::tiny;
  if (tuning.kernel < 0 && expanded && p.length > kLoads) plan.kernel = Kernel::expanded;
  if (tuning.kernel >= 0) {  // only to another kernel of the same direction, and only where that one can
    const Kernel wanted = static_cast<Kernel>(tuning.kernel);
    if (wanted == Kernel::rows && !by_columns) plan.kernel = wanted;
    if (wanted == Kernel::dense && !by_columns && dense_takes(p)) plan.kernel = wanted;
    if (wanted == Kernel::columns && by_columns && !p.kept.empty() && !p.reduced.empty()) plan.kernel = wanted;
    if (wanted == Kernel::thin && by_columns && p.length <= kLanes && p.outputs < kMaxGrid) plan.kernel = wanted;
    if (wanted == Kernel::panels && by_columns && panels_take(plan, p)) plan.kernel = wanted;
    if (wanted == Kernel::narrow && narrow) plan.kernel = wanted;
    if (wanted == Kernel::ring_rows && ring) plan.kernel = wanted;
    if (wanted == Kernel::tiny && tiny) plan.kernel = wanted;
    if (wanted == Kernel::flat && !by_columns && (in_pieces || scattered_vector(plan, r))) plan.kernel = wanted;
    if (wanted == Kernel::expanded && expanded) plan.kernel = wanted;
    if (plan.kernel != wanted)
      throw std::invalid_argument(std::string("tuning: the ") + kKernelNames[tuning.kernel] +
                                  " kernel does not take this input");
  }

  if (unaligned && plan.kernel != Kernel::dense && plan.kernel != Kernel::panels) {
    plan.walk = walk;
    plan.vector = 1;
  }

  plan.warps = std::min(tuning.warps, plan.kernel == Kernel::rows || plan.kernel == Kernel::dense || plan.kernel == Kernel::flat
                                          ? kMaxRowWarps
                                      : plan.kernel == Kernel::ring_rows ? kMaxRingWarps
                                                                         : kMaxColumnWarps);
  t.splits = 1;
  t.partial_output_stride = t.partial_split_stride = 1;
  plan.cluster = plan.block_rows = 1;
  switch (plan.kernel) {
    case Kernel::rows: plan_rows(plan, r, tuning); break;
    case Kernel::thin: plan_thin(plan, r, device); break;
    case Kernel::columns: plan_columns(plan, r, device, tuning); break;
    case Kernel::narrow: plan_narrow(plan, r, device, tuning); break;
    case Kernel::ring_rows: plan_ring_rows(plan, r, device, tuning); break;
    case Kernel::expanded: plan_expanded(plan, p); break;
    case Kernel::tiny: plan_tiny(plan, r, device); break;
    case Kernel::dense: plan_dense(plan, r, device, tuning); break;
    case Kernel::flat: plan_flat(plan, r, device, in_pieces); break;
    case Kernel::panels: plan_panels(plan, r, device, tuning); break;
  }
  const int64_t column_tiles = ceil_div(t.columns, t.tile_outputs);
  if (column_tiles > UINT32_MAX)
    throw std::invalid_argument("sum: the result has too many elements: " + std::to_string(t.outputs));
  t.column_tiles = static_cast<uint32_t>(column_tiles);
  t.batches = ceil_div(t.outputs, t.columns);
  t.tiles = column_tiles * t.splits * t.batches;

  // One pass at least where only the join rounds to the result's dtype, or divides.
  const bool finished_by_join = !is_direct(r.accumulator, r.out) || (r.divisor != 1 && divided_by_join(plan.kernel, size));
  plan.grid = grid_of(plan, device, tuning);
  for (int64_t count = t.splits / plan.cluster; count > 1 || (plan.joins.empty() && finished_by_join);
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
    << " a load"
    << (walk == Walk::shifted  ? ", at odd addresses"
        : walk == Walk::spread ? ", spread"
                               : "")
    << ", " << warps << (warps == 1 ? " warp" : " warps") << " a block";
  if (ring.stages) s << ", " << ring.stages << " stages of " << ring.stage_bytes << " bytes a warp";
  if (ring.stages && row_width == 0) s << ", whole rows a thread";
  if (walk == Walk::nested) s << ", elements in nested dims";
  if (streams) s << ", streamed through the L2";
  s << "\ntile: " << tiling.tile_outputs << " outputs x " << tiling.tile_leaves << " leaves; " << tiling.tiles
    << " tiles, grid " << grid.x << " x " << grid.y << " x " << grid.z << "\nsplits: " << tiling.splits;
  if (cluster > 1) s << ", a cluster";
  for (const Join& j : joins) s << (&j == joins.data() ? ", joined " : ", then ") << j.count << " -> " << j.results();
  s << "\nworkspace: " << workspace_bytes << " bytes; must move: " << bytes << " bytes";
  return s.str();
}

std::string Plan::json() const {
  std::ostringstream s;
  s << "{\"kernel\": \"" << kKernelNames[static_cast<int>(kernel)] << "\", \"vector\": " << vector << ", \"walk\": \""
    << kWalkNames[static_cast<int>(walk)] << "\", \"streams\": " << (streams ? "true" : "false") << ", \"warps\": " << warps
    << ", \"grid\": " << grid.blocks() << ", \"grid_sides\": [" << grid.x << ", " << grid.y << ", " << grid.z << "]"
    << ", \"tiles\": " << tiling.tiles << ", \"splits\": " << tiling.splits << ", \"tile_outputs\": " << tiling.tile_outputs
    << ", \"tile_leaves\": " << tiling.tile_leaves << ", \"outputs\": " << tiling.outputs << ", \"columns\": " << tiling.columns
    << ", \"leaves\": " << tiling.leaves << ", \"row_width\": " << row_width << ", \"stages\": " << ring.stages
    << ", \"stage_bytes\": " << ring.stage_bytes << ", \"ring_bytes\": " << ring.shared_bytes(warps)
    << ", \"warp_columns\": " << warp_columns << ", \"thread_elements\": " << thread_elements
    << ", \"block_rows\": " << block_rows << ", \"batches\": " << batches << ", \"units\": " << panel.units
    << ", \"rows\": " << panel.rows << ", \"kept_rows\": " << panel.kept_rows << ", \"parts\": " << panel.parts
    << ", \"runs\": " << (panel.runs ? "true" : "false") << ", \"late\": " << (panel.late ? "true" : "false")
    << ", \"workspace_bytes\": " << workspace_bytes << ", \"early\": " << (early ? "true" : "false")
    << ", \"cluster\": " << cluster << ", \"bytes\": " << bytes << ", \"joins\": [";
  for (const Join& j : joins) s << (&j == joins.data() ? "" : ", ") << j.fan;
  s << "], \"join_grids\": [";
  for (const Join& j : joins) {
    const Grid g = j.grid(tiling.outputs, 1);
    s << (&j == joins.data() ? "[" : ", [") << g.x << ", " << g.y << ", " << g.z << "]";
  }
  s << "]}";
  return s.str();
}

}  // namespace gpureduce
