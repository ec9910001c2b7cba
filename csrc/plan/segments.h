// Which kernel takes segments, and how it cuts the work. Pure C++.
#pragma once

#include "../problem/segment.h"
#include "gpu.h"
#include "limits.h"

namespace gpureduce::cuda {

// Rows: a warp has a tile of elements and segments, each of which counts as kRowWeight elements.
constexpr int kRowWarps = 20;  // of a multiprocessor, blocks of their own
constexpr int kRowWeight = 4;
constexpr int kLeastRowTile = 256, kMostRowTile = kWarp * kChunk;

constexpr int kColumnThreads = 256;  // of a block
constexpr int kAtOnce = 4;           // segments that a thread looks at together
constexpr int kPartRows = 128,
              kLeastPartRows = 32;  // of a group: as many as it takes at most, and as it has where rows are few
constexpr int kMostTileRows = kChunk;
constexpr int kLaneBits = 9, kChunkBits = 12;
static_assert(1 << kLaneBits == kLanes && 1 << kChunkBits == kChunk);

// Columns of a thread: those of a load of 8 bytes. Wider loads need more registers, and bring no more.
constexpr int segment_vector(int size) { return kGranule / 2 / size; }
// Single columns of a thread, where loads are not aligned and segments so short that what they cost is to be shared. Of 8 bytes
// each they take too many registers.
constexpr int segment_sides(int size) { return size < 4 ? 4 : size < 8 ? 2 : 1; }

// Sums of chunks, and of pieces, that there is room for.
constexpr int64_t chunk_slots(int64_t length) { return 2 * (length / kChunk + 1); }
constexpr int64_t piece_slots(int64_t length, int piece_bits) { return 2 * ((length >> (piece_bits - 1)) + 1); }

// rows: the elements of a segment lie side by side. columns: neighbours belong to different results.
// converted: rows of any dtype and stride, whose elements are converted at run time.
enum class SegmentKernel : uint8_t { rows, columns, converted };

struct SegmentPlan {
  SegmentKernel kernel;
  int64_t tile, tiles;  // positions of a tile (tiles.cuh); of columns, rows
  int64_t row_tiles;    // of rows: tiles of each
  // Of columns.
  int vector, sides;        // columns of a thread: so many times neighbours of one load
  int width_bits;           // of the threads of a group
  int part_bits;            // of the groups that share a short segment
  int run;                  // short segments that these take, one after the other
  int short_rows;           // of a segment that is short
  int piece_bits;           // of the rows of a piece of others
  int64_t column_tiles;     // side by side
  int64_t blocks;           // of the grid; of columns, for each column tile: those of tiles first, then those of short segments
  bool joins;               // segments may have parts in several tiles: a second kernel writes their results
  int64_t workspace_bytes;  // for the sums of parts
};

SegmentPlan plan_segments(const Segments& segments, const Device& device);

// Whether kernels are compiled for segments of a family's dtypes.
constexpr bool has_segments(Family f) { return f == Family::single || f == Family::half || f == Family::integer; }

}  // namespace gpureduce::cuda
