// Which kernel takes an exact sum, of a tensor or of segments, and how it cuts the work. Pure C++.
#pragma once

#include <string>

#include "../api.h"
#include "../problem/exact.h"
#include "../problem/segment.h"
#include "gpu.h"
#include "limits.h"
#include "plan.h"

namespace gpureduce::cuda {

// Kernels add elements of `size` bytes; products of two narrow inputs are added as doubles.
constexpr int kExactRowLoads = 8;                                       // vectors of a thread in flight
constexpr int exact_threads(int size) { return size == 8 ? 64 : 128; }  // of a block: float64 has many digits in shared memory
constexpr int exact_resident(int size) { return size == 8 ? 6 : 5; }    // blocks per multiprocessor that registers must allow
constexpr int exact_column_vector(int size) { return size == 8 ? 1 : 4; }
constexpr int exact_column_loads(int size) { return 128 / (exact_column_vector(size) * size); }
constexpr int kExactAnyThreads = 128;  // of a block, where elements have any dtype and stride

// The int64s of a number in the workspace: its digits, and what they do not show.
constexpr int exact_words(int digits) { return digits + 1; }
// Threads of a block that join numbers, for each of their words: as many as a block of 1024 has room for.
constexpr int exact_log_join_slots(int words) { return words <= 1024 / 32 ? 5 : words <= 1024 / 8 ? 3 : 2; }

// Runs of neighbouring elements, each shorter than a tile. 1 << log_lanes threads take a run, with 1 << log_steps vectors each.
// vectors: all runs lie in whole aligned vectors; otherwise a thread's elements are loaded one by one.
struct ShortRuns {
  int64_t count, length;
  int8_t log_lanes, log_steps;
  bool vectors;
  GPUREDUCE_HOST_DEVICE int side() const { return kWarp >> log_lanes; }  // runs of a warp side by side
};

struct ExactPlan {
  enum class Kernel : uint8_t { short_rows, rows, columns, any };

  Kernel kernel;
  int64_t parts = 1;
  int64_t part_size = 0;                // tiles of rows; otherwise rows of columns, or elements
  int64_t tiles = 0, tiles_of_run = 0;  // of an output's rows; of columns side by side
  bool aligned = false;
  bool repeats = false;  // a run of neighbours has one element of the second input
  int log_warps = 0, log_width = 0, log_lanes = 0;
  ShortRuns runs{};
  bool streams = false;  // the L2 evicts what is read first
  Grid grid;
  int threads = 0;  // of a block
  // The kernel that joins parts: members are threads that share an output's parts.
  int log_members = 0, join_threads = 0;
  int64_t join_blocks = 0;
  int64_t workspace_bytes = 0;  // for the numbers of parts

  GPUREDUCE_API std::string str(const ExactSum& sum) const;
};

// For sum.ordered(), which backends take.
GPUREDUCE_API ExactPlan plan_exact(const ExactSum& sum, const Device& device);

inline Grid plan_rounding(int64_t count) { return {static_cast<uint32_t>(ceil_div(count, kExactAnyThreads))}; }

// An exact sum in words.
GPUREDUCE_API std::string text_of(const ExactSum& sum);

// --- segments ---------------------------------------------------------------------------------------------------------------

constexpr int kExactSegmentWeight = 8;  // a segment costs as much as so many elements
// The logarithm of the most rows of a tile.
constexpr int exact_most_log_tile(int size) { return size == 8 ? 11 : 12; }

struct ExactSegmentPlan {
  bool compiled;  // a kernel of the dtype, with machine code alone
  int log_width, log_tile;
  int64_t column_tiles, tiles;
  int64_t slots;  // each of one number per column; 0 if no segment is cut
  int64_t slot_column_tiles;
  int threads;   // of a block; a warp takes a tile and a column tile
  bool streams;  // the L2 evicts what is read first
  int64_t workspace_bytes;

  GPUREDUCE_API std::string str(const Segments& segments) const;
};

GPUREDUCE_API ExactSegmentPlan plan_exact_segments(const Segments& segments, const Device& device);

}  // namespace gpureduce::cuda
