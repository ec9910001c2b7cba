// Shared by the planners of all kernels. A planner answers two questions: whether its kernel is legal for a problem, and which
// of its few configurations fit. It knows nothing of speed; choose.h does.
#pragma once

#include <algorithm>
#include <vector>

#include "../api.h"
#include "planner.h"

namespace gpureduce {

// A reduction on a device, read by rows or by columns, with the facts that planners need.
struct Request {
  const Reduction& r;
  const Device& device;
  const Problem& p;
  int size;           // bytes of an element in memory; of two inputs, the larger one's
  int element_bytes;  // bytes of an element as kernels hold it, after a conversion at run time if there is one
  int lane_bytes;     // of a lane's sum (Lane in cuda/tree/lanes.cuh)
  int written_bytes;  // of an output as kernels write it: the result, or an accumulator that the join rounds
  bool typed;         // there are kernels for this dtype; otherwise elements are converted
  bool order_free;    // sums of integers
  Variants variants;  // what is compiled
  bool by_columns;    // neighbouring threads own neighbouring outputs; otherwise they read neighbouring elements of one
  Walk walk;
  int vector;             // elements per load if all loads are aligned, otherwise 1
  Walk odd;               // how kernels read misaligned vectors; `walk` if they do not
  int64_t leaves, bytes;  // leaves per output; bytes that must move
  bool direct;            // kernels write the results; otherwise only the join rounds them
  bool streams;           // the L2 evicts the input first

  GPUREDUCE_API Request(const Reduction& r, const Device& device, bool by_columns);

  int odd_vector() const { return kGranule / size; }

  // The kernel with this walk or a more general one, and with at least `loads` loads. Null if there is none.
  const Variant* variant(Kernel kernel, Walk walk, int vector, int loads = 1, int batches = 1) const {
    const int i = variants.serving(kernel, walk, vector, loads, batches);
    return i < 0 ? nullptr : &variants[i];
  }

  // Calls each(walk, vector) for each way to read the elements.
  template <class Each>
  void for_each_reading(const Each& each) const {
    each(walk, vector);
    if (odd != walk) each(odd, odd_vector());
  }
};

// How to cut outputs and leaves, for a kernel of this shape.
struct Proposal {
  Shape shape;
  const Variant* variant;  // null: nothing is proposed
  Walk walk;
  int vector, warps;
  int64_t tile_outputs, tile_leaves;  // tile_leaves is a power of two
  int64_t columns;                    // outputs per batch
  bool by_column = false;  // neighbouring outputs have neighbouring partial sums; otherwise an output's are neighbours
  bool clusters = false;   // an output's splits are a cluster, if the device has room for it
};

// Collects the plans that planners propose for a request.
class Proposals {
 public:
  Proposals(const Request& request, const Tuning& tuning, std::vector<Plan>& plans)
      : request(request), tuning(tuning), plans(plans) {}

  // Adds the plan of a proposal, unless it has too many splits or tiles for a grid.
  void add(const Proposal& proposal);

  const Request& request;
  const Tuning& tuning;
  std::vector<Plan>& plans;
};

int64_t power_of_two_above(int64_t x);

// Elements of a leaf that a thread should have in flight: 1, 2, 4 or kDepth, at least as many as the longest leaf has.
int leaf_elements(int64_t length);

// True if the fastest dim in memory is kept, so that a problem should be read by columns.
bool fastest_dim_is_kept(const Problem& p);

// The plans that all kernels propose, or the kernel that the tuning names. If a cache line holds neighbours of one output and
// of other outputs, as with short rows and few columns, the problem is read both ways.
GPUREDUCE_API std::vector<Plan> propose_all(const Reduction& r, const Device& device, const Tuning& tuning);

// Calls each(size) for up to kTileSizes sizes of a tile, which are powers of two up to `most`. The smallest one gives at most
// kMostTiles tiles per multiprocessor, but is never above most / 4.
constexpr int kMostTiles = 16;  // per multiprocessor
constexpr int kTileSizes = 5;
template <class Tiles, class Each>
void for_each_tile_size(int64_t most, const Device& device, const Tiles& tiles, const Each& each) {
  int64_t size = 1;
  while (size < most && tiles(size) > int64_t{kMostTiles} * device.multiprocessors) size *= 2;
  if (size > most >> 2) size = std::max<int64_t>(1, most >> 2);
  for (int i = 0; i < kTileSizes && size <= most; ++i, size *= 2) each(size);
}

// The planners of all kernels, in the order of Shape. takes() tells whether the kernel is legal for the problem.
#define GPUREDUCE_PLANNERS(X) X(dense) X(flat) X(ring) X(thin) X(columns) X(panels) X(expanded)
#define GPUREDUCE_PLANNER(kernel)        \
  namespace kernel##_kernel {            \
    bool takes(const Request& request);  \
    void propose(Proposals & proposals); \
  }
GPUREDUCE_PLANNERS(GPUREDUCE_PLANNER)
#undef GPUREDUCE_PLANNER

}  // namespace gpureduce
