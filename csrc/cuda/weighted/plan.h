// Which kernel takes a weighted sum, and how it cuts the work. Pure C++.
#pragma once

#include "../../plan/gpu.h"
#include "../../plan/limits.h"
#include "../../weighted.h"

namespace gpureduce::cuda {

constexpr int kWeightedThreads = 256;         // of a block, at most
constexpr int kWeightedSumsBytes = 32 << 10;  // lane sums that a block of columns keeps
constexpr int kMostWeightedRun = 128;         // units that a warp takes one after the other: a power of two
constexpr int kWeightedTilesOfEach = 16;      // multiprocessor, that there are at most while tiles can be larger
constexpr int kMostWeightedGroups = 16;       // vectors of a row that a thread of short rows holds

// Of a row's unit: leaves that a warp takes at once are 32 threads times a vector times this. Rows of so few elements a leaf
// are one unit.
GPUREDUCE_HOST_DEVICE constexpr int weighted_groups(int vector, int largest, int elements) {
  if (elements < kDepth) return kLanes / (kWarp * vector);
  const int groups = kGranule / (vector * largest);
  return groups > 4 ? 4 : groups < 1 ? 1 : groups;
}
constexpr int kFewElements = 2;  // of a leaf
constexpr int kFewOfRow = 2;     // elements of rows so short that they are taken as columns

// Columns: neighbouring leaves that a thread joins in registers, all of one element or of several, so that few sums of `bytes`
// each go through memory; and how many of a vector's outputs it takes, whose sums stay in registers.
GPUREDUCE_HOST_DEVICE constexpr int column_unit(bool is_short, int bytes) { return is_short ? kDepth : bytes > 8 ? 4 : 1; }
GPUREDUCE_HOST_DEVICE constexpr int most_columns(int vector, int bytes) { return bytes > 8 && vector > 4 ? 4 : vector; }

// Short rows that a thread takes at once.
GPUREDUCE_HOST_DEVICE constexpr int weighted_rows_at_once(int groups) { return groups < kLoads ? kLoads / groups : 1; }

// short rows: every element is a leaf; neighbouring threads of a warp take a row, and several rows each.
// rows: a warp takes units of a row, a block some neighbouring ones; or a warp takes rows of one unit, one after the other.
// columns: a thread takes lanes of neighbouring outputs.
enum class WeightedKernel : uint8_t { short_rows, rows, columns };

struct WeightedPlan {
  WeightedKernel kernel;
  bool typed;        // or each element is converted at run time
  bool swapped;      // the kernel's first input is the weight
  int vector;        // neighbours that a thread takes
  bool second_same;  // the second input is the same for all of a vector's neighbours
  int groups;        // of short rows
  int log_width;     // threads side by side: of a short row, of columns
  int threads;       // of a block
  int elements;      // of rows: those of a leaf that are loaded at once
  int run;           // of rows: units of a warp, or rows of one unit; of short rows: times that a warp takes some at once
  int tile_leaves;   // of columns
  int64_t columns, column_tiles, splits, blocks;
  bool joins;        // a second kernel writes the results
  int join_threads;  // an output

  int64_t partials(const weighted::Reduction& r) const { return joins ? r.problem.outputs * splits : 0; }
};

// Whether kernels are compiled for such factors, the larger of them first.
bool takes_weighted(DType first, DType second, Accumulator accumulator);

WeightedPlan plan_weighted(const weighted::Reduction& reduction, const Device& device);

}  // namespace gpureduce::cuda
