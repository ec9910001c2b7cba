// From a problem to a launch: which kernel, how wide, how split. Pure C++: no CUDA types. All tuning constants live in
// plan.cpp.
//
// The order of additions is fixed per *leaf* (order.h), so a plan may cut the work anywhere between aligned power-of-two runs
// of leaves: it decides speed and never a bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geometry.h"

namespace gpureduce {

// Blocks of a grid along x, and along y and z.
constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1, kMaxGridDepth = 65535;

constexpr int kWarp = 32;
constexpr int kLoads = 8;                      // vector loads a thread keeps in flight: a full leaf's depth
constexpr int kJoinRun = 8;                    // partial sums one thread of the join kernel takes
constexpr int kMaxRowWarps = 16;               // warps a block of the dense, flat and rows kernels
constexpr int kMaxDenseUnits = 128;            // units a block of the dense kernel takes
constexpr int kMaxDenseDepth = kMaxGridDepth;  // rows below each other in its grid, if blocks have a part of one
constexpr int kMaxColumnWarps = 8;             // and of the others
constexpr int kMaxPanelLeaves = 4096;          // of a tile of the panels kernel
constexpr int kLogPanelRows = 5;               // rows of a column that a thread of it joins at the end, at most 1 << 5
constexpr int kPanelBytes = 32 * 1024;         // of lane sums in shared memory
constexpr int kMaxBatches = 8;                 // runs of leaves a block of the narrow kernel takes one after the other
constexpr int kMaxRingWarps = 16;              // warps a block of the ring kernel
constexpr int kRingStageBytes = 32;            // that a stage of it takes besides its own: a note and a barrier
constexpr int kRingBlocks = 2;                 // of them a multiprocessor
constexpr int kWholeRowWords = 256;            // of 4 bytes, of a row that a thread of the ring kernel takes alone
constexpr int kGranule = 16;                   // bytes: bulk copies begin and end at multiples of it
constexpr int kLine = 128;                     // bytes
constexpr int kMaxCluster = 8;                 // blocks of a cluster: as many as every device of capability 9.0 and later takes
constexpr int kMaxJoin = 8192;                 // partial sums one block of the join kernel takes: 1024 threads
static_assert(kLoads == kDepth);
// Elements of 16 bits are added in 32 to the end of a tile.
static_assert(int64_t{kMaxPanelLeaves} * kDepth * 65535 <= INT32_MAX);

// dense    a warp takes a unit of row_unit() neighbouring leaves of a row (the fastest dim in memory is reduced)
// rows     the same, element by element, for rows that are too many, or too long in nested dims, for dense
// flat     short rows: neighbouring threads take one, a load each or a few, and have loads of several rows in flight
// thin     a thread takes all elements of its outputs, if these are few   (the fastest dim in memory is kept)
// columns  a warp takes neighbouring columns, a thread neighbouring leaves of them
// panels   the same in vectors, one stride from row to row
// narrow   a block takes runs of leaves of few dense columns, as pieces of memory
// ring_rows  short rows at odd addresses through a ring of stages in shared memory, which bulk copies fill far ahead
// expanded a thread an output, which has one element many times
// tiny     dense rows of up to tiny_length() elements: a thread takes `vector` rows as so many vectors
enum class Kernel : uint8_t { rows, thin, columns, ring_rows, narrow, expanded, tiny, dense, flat, panels };

// How a kernel finds the elements of an output.
// dense    side by side
// linear   one stride apart
// nested   in nested dims
// shifted  rows or columns at odd addresses: in aligned vectors that hold them (cuda/shifted.cuh)
// spread   columns at odd addresses: a thread reads a vector's, one by one, apart from each other
// deep     in more than two nested dims: a kernel's walk of rows, where that of the plan is nested
enum class Walk : uint8_t { dense, linear, nested, shifted, spread, deep };

// Whether a kernel leaves the quotients of means to the join: of bytes in the ring, where a division in the code costs the sum
// as well. Rows (2^20, 100) of float8 take 38.2 us, and 45.2 with it.
GPUREDUCE_HOST_DEVICE constexpr bool divided_by_join(Kernel kernel, int size) {
  return kernel == Kernel::ring_rows && size == 1;
}

// Whether the ring kernel takes rows of elements of this size, and whether its threads share them: words are read as well in
// pieces.
GPUREDUCE_HOST_DEVICE constexpr bool rings_rows(int size) { return size <= 4; }
GPUREDUCE_HOST_DEVICE constexpr bool shares_rows(int size) { return size < 4; }

// Rounded up to whole lines.
GPUREDUCE_HOST_DEVICE constexpr int whole_lines(int bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// What the driver says of a GPU. By default an H200's.
struct Device {
  int multiprocessors = 132;
  int64_t l2_bytes = 60 << 20;
  int shared_bytes = 227 << 10;            // of shared memory, that a block may have
  int processor_shared_bytes = 228 << 10;  // and the blocks of a multiprocessor together,
  int reserved_shared_bytes = 1 << 10;     // with these of each block, which are the driver's
  bool early = true;                       // the code that runs is for 9.0 or later: kernels that start early, bulk copies
  bool clusters = true;                    // and kMaxCluster blocks of any kernel have room to run as a cluster

  // From "key=value,key=value", for tests; a flag is 0 or 1. Throws std::invalid_argument.
  static Device parse(const std::string& text);
  std::string json() const;  // for tests
};

// Vectors of lane sums that a block of the columns kernel keeps in shared memory. Longer tiles of bytes gain nothing: (64,
// 4096, 1024) dim 1 float8 71.3 us, and 74.0 with whole columns a tile.
GPUREDUCE_HOST_DEVICE constexpr int column_slots(int vector) { return vector > 8 ? 128 : 512; }

// The panels kernel: batches of leaves that a thread takes where it takes several, and warps of it that a multiprocessor runs
// at a time, as its registers are cut: as many as do not spill. `words` are those of a vector of lane sums. (64, 4096, 1024)
// dim 1 bfloat16 122.6 us with 32 warps, 130 with 24. Several batches of two or four elements each in eight columns need so
// many registers: (1024, 32768) bfloat16 22.5 us with four, and 17.8 with one.
GPUREDUCE_HOST_DEVICE constexpr int panel_batches(int vector, int words, int elements, bool order_free, Walk walk) {
  if (walk == Walk::spread || (walk == Walk::shifted && vector > 8)) return 1;
  if (words > (vector < 8 ? 4 : vector) || (order_free && vector == 8)) return 1;
  if (vector > 8) return elements == kDepth ? 2 : 1;
  if (vector == 8 && elements > 1 && elements < kDepth) return 1;
  return elements == 1 || (order_free && vector == 2) ? 2 : 4;
}
GPUREDUCE_HOST_DEVICE constexpr int panel_wave(int words, Walk walk) {
  if (words > 16) return 16;
  return walk == Walk::shifted ? 24 : 32;
}

// Whether there are kernels of it that join a run of units at once: of two bytes an element and sums of four, of which whole
// columns may be as many tiles as run at a time.
GPUREDUCE_HOST_DEVICE constexpr bool panel_runs(int vector, int words, int elements, bool order_free, Walk walk) {
  return vector == 8 && words == 8 && elements > 1 && !order_free && (walk == Walk::linear || walk == Walk::dense);
}

// Whether the join of its sums may be told to begin late: of integers, and of elements of four and eight bytes in twice the
// width. (2^20, 64) int8 18.5 us, and 20.5; int32 62.3 and 63.8, float32 to float64 62.6 and 64.6.
GPUREDUCE_HOST_DEVICE constexpr bool panel_late(int vector, int words, bool order_free) {
  return order_free || (vector < 8 && words > 4);
}

// Warps of the narrow kernel that a multiprocessor runs at a time.
GPUREDUCE_HOST_DEVICE constexpr int narrow_wave(int words) { return words > 16 ? 16 : 24; }

// Groups of 32 loads of so many bytes, a vector each, that a row of the flat kernel has at most: a chunk's, but no more of
// single elements of 16 bytes than registers hold.
GPUREDUCE_HOST_DEVICE constexpr int flat_groups(int bytes, int vector) {
  return bytes == kGranule && vector == 1 ? 4 : kLanes / (kWarp * vector);
}

// Loads that a thread of it keeps in flight: (2^23, 8) bfloat16 35.9 us with four of 16 bytes, and 36.5 with eight; (2^20, 100)
// 51.1 with four of 8 bytes, and 50.6 with eight. Of rows that are not dense more, whose places are worked out first.
GPUREDUCE_HOST_DEVICE constexpr int flat_loads(int bytes, int groups, bool in_pieces) {
  const int loads = bytes == kGranule ? 4 : in_pieces ? 8 : 16;
  return groups > loads ? groups : loads;
}

// What dense is compiled for: more than two dims are deep; of elements that are converted at run time, all nested ones are, and
// others linear. Deep rows are read in two elements a leaf or in kDepth.
inline Walk dense_walk(Walk walk, const Problem& p, bool typed) {
  if (!typed) return p.reduced.size() > 1 ? Walk::deep : Walk::linear;
  return p.reduced.size() > 2 ? Walk::deep : walk;
}

// Threads that a row of the flat kernel has at least: those that are compiled. Rows of half as many vectors are read one by
// one.
GPUREDUCE_HOST_DEVICE constexpr int flat_width(bool in_pieces, bool any, int vector) {
  return in_pieces ? 1 : any ? 8 : vector > 1 ? 16 : 4;
}

// Whether it reads rows as pieces of memory; or else in any dims.
GPUREDUCE_HOST_DEVICE constexpr bool reads_pieces(Walk walk, int bytes) { return walk == Walk::dense && bytes >= 4; }

// Groups of 32 * vector leaves that a unit of a row has, of elements of so many bytes: as many as keep kLoads whole vectors in
// flight, or as many registers' single elements, but no more than a chunk has.
GPUREDUCE_HOST_DEVICE constexpr int row_groups(int vector, int elements, int size) {
  const int words = vector * size > 4 ? vector * size / 4 : 1, loads = kLoads * kGranule / 4 / words;
  const int in_flight = loads / elements, in_chunk = kLanes / (kWarp * vector);
  return in_flight < in_chunk ? in_flight : in_chunk;
}

// Leaves that a warp takes at a time of a row; of a shifted one, a whole chunk's.
GPUREDUCE_HOST_DEVICE constexpr int row_unit(int vector, int elements, int size, Walk walk = Walk::dense) {
  return walk == Walk::shifted ? kLanes : row_groups(vector, elements, size) * kWarp * vector;
}

// Whether a chunk of so many elements is read as one of two a leaf.
GPUREDUCE_HOST_DEVICE constexpr bool is_short_chunk(int64_t elements) { return elements <= 2 * kLanes; }

// Whether rows and columns of elements of this size are read in shifted vectors: not where single elements are as fast. Of
// columns a thread then takes as many, spread over the warp's.
GPUREDUCE_HOST_DEVICE constexpr bool shifts_rows(int size) { return size < 4; }
GPUREDUCE_HOST_DEVICE constexpr bool shifts_columns(int size) { return size < 4; }
GPUREDUCE_HOST_DEVICE constexpr bool spreads_columns(int size) { return size == 4 || size == 8; }

// The fewest elements of a leaf for which there are kernels of shifted columns. Of leaves that are one byte in each of sixteen
// columns a thread has too many at a time.
GPUREDUCE_HOST_DEVICE constexpr int shifted_column_elements(int size) { return size == 1 ? 4 : 1; }

// Warps that a block of the dense kernel has at most, and blocks of so many that a multiprocessor has room for: shifted rows
// need a few more registers than the 64 of 32 warps.
GPUREDUCE_HOST_DEVICE constexpr int dense_warps(Walk walk) { return walk == Walk::shifted ? 8 : kMaxRowWarps; }
GPUREDUCE_HOST_DEVICE constexpr int dense_blocks(Walk walk) { return walk == Walk::shifted ? 3 : 2; }
GPUREDUCE_HOST_DEVICE constexpr int dense_wave(Walk walk) { return dense_warps(walk) * dense_blocks(walk); }  // warps

// A few elements beyond a row's last whole chunk, which are no work for a warp.
GPUREDUCE_HOST_DEVICE constexpr int row_rest(int64_t length) {
  return length > kChunk && length % kChunk <= kWarp ? static_cast<int>(length % kChunk) : 0;
}

// Whether short rows of several units share blocks; others are long, and their kernels begin 0.03 to 0.07 us sooner without.
GPUREDUCE_HOST_DEVICE constexpr bool shares_blocks(int vector, int elements) { return vector == 1 || elements < kDepth; }

// Whether kernels of single elements, eight a leaf, added in sums of so many bytes, read a short last chunk with loads for two:
// wider sums have no registers left for it.
GPUREDUCE_HOST_DEVICE constexpr bool reads_short(int vector, int elements, int sum, Walk walk) {
  return vector == 1 && elements == kDepth && sum <= 8 && walk != Walk::deep;
}

// Leaves of a unit that is read with those: as many loads as a whole one's. (16384, 5001) float32, whose short chunk is one
// unit, 73.4 us; with four, in another kernel, 74.9, and 74.2 with one. And how many a row has in tiles of so many leaves: none
// where its last chunk is not short, or several tiles'.
GPUREDUCE_HOST_DEVICE constexpr int short_unit_leaves(int size) { return row_unit(1, 2, size); }
GPUREDUCE_HOST_DEVICE constexpr int short_units(int64_t length, int size, int64_t tile_leaves) {
  const int64_t last = length > kChunk && tile_leaves >= kLanes ? length % kChunk : 0;
  if (last <= kWarp || !is_short_chunk(last)) return 0;
  const int unit = short_unit_leaves(size);
  return static_cast<int>(((last < kLanes ? last : kLanes) + unit - 1) / unit);
}

// Whether a warp of the dense kernel takes such a row alone, of a shifted one with its rest.
GPUREDUCE_HOST_DEVICE constexpr bool row_alone(int64_t leaves, int unit_leaves, Walk walk) {
  return leaves <= unit_leaves + (walk == Walk::shifted ? kWarp : 0);
}

// The longest rows that the tiny kernel takes: beyond, what a warp's load touches are too many lines. (2^24, 3) bfloat16 takes
// 33 us, and 51 through the ring; (2^22, 8) 26 and 21.
GPUREDUCE_HOST_DEVICE constexpr int tiny_length(int vector) { return vector == 8 ? 7 : 5; }

// Runs of rows that a thread of the tiny kernel takes: as many as keep up to kLoads loads in flight.
GPUREDUCE_HOST_DEVICE constexpr int tiny_runs(int length) { return kLoads / length; }

// Runs of outputs that a thread of the thin kernel takes: as many as keep kLoads loads in flight; of vectors one, for results
// are written meanwhile. (2, 2^25) float32 93.4 us, and 94.2 with four.
GPUREDUCE_HOST_DEVICE constexpr int thin_runs(int vector, int elements) { return vector > 1 ? 1 : kLoads / elements; }

// Columns that a thread of it takes whole, of more elements, side by side: vectors of bytes have too many sums.
GPUREDUCE_HOST_DEVICE constexpr bool wholes_columns(int vector) { return vector <= 8; }

// Batches of leaves that a thread of the columns kernel takes where it takes several. Of bytes a batch is large already. Of
// vectors a stride apart it takes one: the panels kernel takes these, but for more batches of columns, or rows, than its grid
// has.
GPUREDUCE_HOST_DEVICE constexpr int column_batches(int vector, bool nested) {
  return vector > 1 && !nested ? 1 : vector > 8 ? 2 : 4;
}

// Values forced on the planner, for tests and tuning; 0 means the planner's own choice. Parsed from "key=value,key=value".
// vector=1 forces single elements. cluster=1 forbids clusters, and any other makes them of up to so many blocks, even more than
// can be launched. width=1 has threads take whole rows where they can; any other, not. keep=1 lets the L2 keep the input as it
// can; any other, let it go first. grid= is for kernels whose blocks take tile after tile: dense, flat and panels have a block
// a tile.
struct Tuning {
  int multiprocessors = 0, vector = 0, warps = 0, tile_leaves = 0, batches = 0, grid = 0;
  int stages = 0, stage_bytes = 0, width = 0, keep = 0, cluster = 0;
  int kernel = -1;

  static Tuning parse(const std::string& text);  // throws std::invalid_argument
};

// The part of the work one block does at a time: a run of outputs and a run of their leaves.
struct Tile {
  int64_t batch, column;  // of the first output
  int64_t output, outputs;
  int64_t leaf, leaves;
  int64_t partial;  // index of the first output's partial sum; the next output's is `partial_output_stride` on
};

// How outputs and leaves are cut into tiles. Kernels and tests find tiles with this same code.
struct Tiling {
  uint32_t column_tiles;  // tiles side by side in a batch
  uint32_t splits;        // tiles one after the other along the leaves, at most kMaxGrid; two or more write partial sums
  int32_t tile_outputs, tile_leaves;  // tile_leaves is a power of two
  int64_t batches;                    // of outputs
  int64_t tiles;                      // all of them
  int64_t leaves;
  int64_t columns;  // outputs in one batch; tiles do not reach over its end
  int64_t partial_output_stride, partial_split_stride;
  int64_t outputs;

  // Divides `rest` by `size` and returns what is left over. Most often there is nothing to divide, or little: to divide in 64
  // bits is a lot of code, which stands once.
  template <class Index>
  static GPUREDUCE_HOST_DEVICE uint32_t take(Index& rest, uint32_t size) {
    Index quotient = 0;
    if (sizeof(Index) > 4 && rest >> (8 * sizeof(Index) - 32) != 0) quotient = quotient_of(rest, size);
    else quotient = rest < size ? 0 : size == 1 ? rest : static_cast<uint32_t>(rest) / size;
    const uint32_t left = static_cast<uint32_t>(rest - quotient * size);
    rest = quotient;
    return left;
  }
  static GPUREDUCE_OUT_OF_LINE uint64_t quotient_of(uint64_t rest, uint32_t size) { return rest / size; }

  // The tile of a number, counted along columns, then splits, then batches. Index: uint32_t where all are fewer than 2^32, or
  // uint64_t.
  template <class Index>
  GPUREDUCE_HOST_DEVICE Tile tile(Index index) const {
    const uint32_t column_tile = take(index, column_tiles), split = take(index, splits);
    return tile(column_tile, split, static_cast<int64_t>(index));
  }

  GPUREDUCE_HOST_DEVICE Tile tile(uint32_t column_tile, uint32_t split, int64_t batch) const {
    Tile t;
    t.batch = batch;
    t.column = int64_t{column_tile} * tile_outputs;
    t.output = t.batch * columns + t.column;
    t.outputs = columns - t.column;
    if (t.outputs > tile_outputs) t.outputs = tile_outputs;
    if (t.outputs > outputs - t.output) t.outputs = outputs - t.output;
    t.leaf = int64_t{split} * tile_leaves;
    t.leaves = leaves - t.leaf;
    if (t.leaves > tile_leaves) t.leaves = tile_leaves;
    t.partial = t.output * partial_output_stride + split * partial_split_stride;
    return t;
  }
};

// Blocks side by side, along the leaves, and of batches. Each takes the tile at its place, and others a whole grid on, if any.
struct Grid {
  uint32_t x = 1, y = 1, z = 1;
  uint32_t cluster_x = 1, cluster_y = 1;  // blocks of a cluster
  int64_t blocks() const { return int64_t{x} * y * z; }
};

// One pass of the join kernel: every output's `count` partial sums become ceil(count / fan), nearest neighbours first.
struct Join {
  int64_t count;
  int32_t fan;      // a power of two: threads * kJoinRun
  int32_t threads;  // an output
  int64_t results() const { return (count + fan - 1) / fan; }

  // Of blocks that take `side` outputs each. Results stand along y and then z, whose last blocks may have none.
  Grid grid(int64_t outputs, int64_t side) const {
    const int64_t depth = (results() + kMaxGridDepth - 1) / kMaxGridDepth, height = (results() + depth - 1) / depth;
    return {static_cast<uint32_t>((outputs + side - 1) / side), static_cast<uint32_t>(height), static_cast<uint32_t>(depth)};
  }
};

// The ring_rows kernel.
struct RingShape {
  int32_t stages, stage_bytes;  // a warp has
  int32_t pitch;                // bytes between short rows, which stand in a stage as in memory

  int64_t shared_bytes(int warps) const { return int64_t{warps} * stages * (stage_bytes + kRingStageBytes); }
};

// The panels kernel.
struct PanelShape {
  int32_t units;            // of a tile
  int32_t rows, kept_rows;  // of lane sums: those that are joined at the end, and all that stand in shared memory
  int32_t parts;            // threads that join a column's
  bool runs;                // a warp takes neighbouring units, and joins them one by one
  bool late;                // the next kernel is to start when a warp of every block has read its part, not before
};

struct Plan {
  Kernel kernel;
  Tiling tiling;
  int vector;  // elements a load
  Walk walk;
  int warps;            // a block
  int warp_columns;     // columns, panels: threads of a warp side by side
  int thread_elements;  // elements of a leaf a thread has in flight at once: kDepth, or 4, 2 or 1 where leaves have no more;
                        // thin: of an output, 2, 4 or 8; or more than it has at once, of a whole column
  int batches;          // columns, panels: how often it does that, for neighbouring leaves: once or so many times;
                        // narrow: runs a tile
  PanelShape panel;
  RingShape ring;
  int block_rows;             // dense: rows whose warps share a block, if that is not a warp a row
  int short_units;            // dense: those that a row's short last chunk is taken in, if any
  int row_width, row_groups;  // ring_rows, flat: loads of a row, and groups of 32 of them; 0: a thread takes whole rows
  bool streams;               // the L2 is to let the input go before all else
  bool early;                 // kernels may start while the one before drains
  int cluster;                // dense, panels: an output's splits, where they are a cluster and need no join; or 1
  Grid grid;
  std::vector<Join> joins;
  int64_t workspace_bytes;
  int64_t bytes;  // that must move: input once, output once

  std::string str() const;   // for people
  std::string json() const;  // for tests
};

// What the input takes up in memory.
struct InputSpan { const char *begin, *end; };
InputSpan input_span(const Reduction& reduction);

// Whether elements are read as their own type, by kernels compiled for it; or else through a run-time conversion of each.
bool is_typed(const Reduction& reduction);

Plan make_plan(const Reduction& reduction, const Device& device, const Tuning& tuning = {});

}  // namespace gpureduce
