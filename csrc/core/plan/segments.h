// Which kernel takes segments, and how it cuts the work. Pure C++.
#pragma once

#include <string>

#include "../api.h"
#include "../problem/segment.h"
#include "gpu.h"
#include "limits.h"

namespace gpureduce::cuda {

// Rows: a warp takes a tile of elements and segments. A segment costs as much as kRowWeight elements.
constexpr int kRowWarps = 20;  // per multiprocessor; each is a block of its own
constexpr int kRowWeight = 4;
constexpr int kLeastRowTile = 256, kMostRowTile = kWarp * kChunk;

constexpr int kColumnThreads = 256;  // per block
constexpr int kAtOnce = 4;           // segments that a thread looks at together
constexpr int kPartRows = 128,
              kLeastPartRows = 32;  // rows per group: at most, and at least if there are few rows
constexpr int kMostTileRows = kChunk;
constexpr int kJoinWarps = 16;  // of a block that joins parts
constexpr int kLaneBits = 9, kChunkBits = 12;
static_assert(1 << kLaneBits == kLanes && 1 << kChunkBits == kChunk);

// Columns per thread: a load of 8 bytes. Wider loads need more registers, and are no faster.
constexpr int segment_vector(int size) { return kGranule / 2 / size; }
// The same of gathered rows: a load of 16 bytes, so that more rows are in flight. Sums of integers take more registers.
constexpr int gathered_vector(int size, bool integer) { return integer ? segment_vector(size) : kGranule / size; }
// Single columns per thread, if loads are misaligned and segments so short that columns should share their cost. Columns of 8
// bytes would take too many registers.
constexpr int segment_sides(int size) { return size < 4 ? 4 : size < 8 ? 2 : 1; }

// Room in the workspace for the sums of chunks, and of pieces.
constexpr int64_t chunk_slots(int64_t length) { return 2 * (length / kChunk + 1); }
constexpr int64_t piece_slots(int64_t length, int piece_bits) { return 2 * ((length >> (piece_bits - 1)) + 1); }

// rows: the elements of a segment lie side by side. columns: neighbours belong to different results.
// converted: rows of any dtype and stride, whose elements are converted at run time.
enum class SegmentKernel : uint8_t { rows, columns, converted };

struct SegmentPlan {
  SegmentKernel kernel;
  int64_t tile, tiles;  // positions per tile (segments/places.cuh), or rows per tile of columns; tiles in all
  int64_t row_tiles;    // rows: tiles per row
  // Of columns:
  int vector, sides;                       // columns per thread: `sides` loads of `vector` neighbours
  int width_bits;                          // log2 of the threads per group
  int part_bits;                           // log2 of the groups that share a short segment
  int run;                                 // short segments that these groups take one after the other
  int short_rows;                          // most rows of a short segment
  int piece_bits;                          // log2 of the most rows of a piece of a longer segment
  int64_t column_tiles;                    // side by side
  int64_t blocks;                          // of the grid; of columns, per column tile: first the tiles, then the short segments
  bool joins;                              // segments may have parts in several tiles: a second kernel writes their results
  int64_t join_blocks, join_column_tiles;  // of that kernel, a warp for each tile; 32 columns of columns side by side
  bool streams;                            // the L2 evicts what is read first
  int64_t workspace_bytes;                 // for the sums of parts

  GPUREDUCE_API std::string str(const Segments& segments) const;
};

GPUREDUCE_API SegmentPlan plan_segments(const Segments& segments, const Device& device);

// Segments in words.
GPUREDUCE_API std::string text_of(const Segments& segments);

// True if kernels are compiled for segments of a family's dtypes.
constexpr bool has_segments(Family f) { return f == Family::single || f == Family::half || f == Family::integer; }

}  // namespace gpureduce::cuda
