// From a problem to a launch: which kernel, how wide, how split. Pure C++: no CUDA types.
//
// The order of additions is fixed per *leaf* (order.h), so a plan may cut the work anywhere between aligned power-of-two runs
// of leaves: it decides speed and never a bit.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "../api.h"
#include "../problem/geometry.h"
#include "dense.h"
#include "expanded.h"
#include "variant.h"

namespace gpureduce {

// The part of the work one block does at a time: a run of outputs and a run of their leaves.
struct Tile {
  int64_t batch, column;  // of the first output
  int64_t output, outputs;
  int64_t leaf, leaves;
  int64_t partial;  // index of the first output's partial sum; the next output's is `partial_output_stride` further
};

// How outputs and leaves are cut into tiles. Kernels and tests share this code.
struct Tiling {
  uint32_t column_tiles;  // tiles side by side in a batch
  uint32_t splits;        // tiles one after the other along the leaves, at most kMaxGrid; two or more write partial sums
  int32_t tile_outputs, tile_leaves;  // tile_leaves is a power of two
  int64_t batches;                    // of outputs
  int64_t tiles;                      // in all
  int64_t leaves;
  int64_t columns;  // outputs per batch; no tile crosses its end
  int64_t partial_output_stride, partial_split_stride;
  int64_t outputs;

  // Divides `rest` by `size` and returns the remainder. Usually there is nothing to divide, or 32 bits are enough. A 64-bit
  // division is a lot of code, so it is not inlined.
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

  // The tile with a number, counted along columns, then splits, then batches. Index: uint32_t if there are fewer than 2^32
  // tiles, otherwise uint64_t.
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

// A grid of blocks along column tiles, splits and batches; grid_of() has the exceptions. A block takes the tile at its place,
// and those that lie whole grids further, if any.
struct Grid {
  uint32_t x = 1, y = 1, z = 1;
  uint32_t cluster = 1;  // blocks of a cluster, along x
  int64_t blocks() const { return int64_t{x} * y * z; }
};

// One pass of the join kernel: every output's `count` partial sums become ceil(count / fan), nearest neighbours first.
struct Join {
  int64_t count;
  int32_t fan;      // a power of two: threads * kJoinRun
  int32_t threads;  // per output
  int64_t results() const { return (count + fan - 1) / fan; }

  // The grid if a block takes `side` outputs. Results lie along y and then z, whose last blocks may have none.
  Grid grid(int64_t outputs, int64_t side) const {
    const int64_t depth = (results() + kMaxGridDepth - 1) / kMaxGridDepth, height = (results() + depth - 1) / depth;
    return {static_cast<uint32_t>((outputs + side - 1) / side), static_cast<uint32_t>(height), static_cast<uint32_t>(depth)};
  }
};

// The passes of the join kernel: three at most, since an output has at most kMaxGrid splits.
class Joins {
 public:
  void push_back(const Join& join) { joins_[size_++] = join; }
  bool empty() const { return size_ == 0; }
  int size() const { return size_; }
  const Join& back() const { return joins_[size_ - 1]; }
  const Join& operator[](int i) const { return joins_[i]; }
  const Join* begin() const { return joins_; }
  const Join* end() const { return joins_ + size_; }

 private:
  int size_ = 0;
  Join joins_[4];
};

// The part of a plan that belongs to its kernel. The alternative that it holds tells the kernel.
using Shape = std::variant<DensePlan, FlatPlan, RingPlan, ThinPlan, ColumnsPlan, PanelsPlan, ExpandedPlan>;

GPUREDUCE_API const char* kernel_name(size_t alternative);

struct Plan {
  Shape shape;
  Variant variant;  // the compiled kernel
  Walk walk;        // the walk that the problem needs; the kernel's may be more general
  bool by_columns;  // neighbouring threads own neighbouring outputs
  int vector;       // elements per load
  int warps;        // per block
  int cluster;      // the splits of an output if they are a cluster and need no join, otherwise 1
  Tiling tiling;
  Grid grid;
  Joins joins;
  bool streams;  // the L2 evicts the input first
  bool early;    // kernels may start while the previous one drains
  int64_t workspace_bytes;
  int64_t bytes;  // that must move: input once, output once

  template <class Kernel>
  bool is() const {
    return std::holds_alternative<Kernel>(shape);
  }
  template <class Kernel>
  const Kernel& as() const {
    return std::get<Kernel>(shape);
  }
  const char* kernel() const { return kernel_name(shape.index()); }

  GPUREDUCE_API std::string str() const;   // for people
  GPUREDUCE_API std::string json() const;  // for tests
};

// The range of memory that the input takes up.
struct InputSpan { const char *begin, *end; };
InputSpan input_span(const Reduction& reduction);

}  // namespace gpureduce
