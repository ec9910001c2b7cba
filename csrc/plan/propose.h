// What the planners of all kernels share. A planner answers two questions: whether its kernel is legal for a problem, and which
// of its few configurations fit. It knows nothing of speed; choose.h does.
#pragma once

#include <algorithm>
#include <vector>

#include "planner.h"

namespace gpureduce {

// A reduction on a device as it is read one way, by rows or by columns, and what planners ask of it.
struct Request {
  const Reduction& r;
  const Device& device;
  const Problem& p;
  int size;           // bytes of an element in memory, of the larger one of two inputs
  int element_bytes;  // and as kernels have it, after a conversion at run time if there is one
  int lane_bytes;     // of a lane's sum (Lane in cuda/tree/lanes.cuh)
  int written_bytes;  // of an output as kernels write it: the result, or an accumulator that the join rounds
  bool typed;         // there are kernels of this dtype; or else elements are converted
  bool order_free;    // sums are of integers
  Variants variants;  // what is compiled
  bool by_columns;    // neighbouring threads own neighbouring outputs; or else they read neighbouring elements of one
  Walk walk;
  int vector;             // elements of a load, if all places where one may begin are aligned; or 1
  Walk odd;               // how kernels read vectors at odd addresses, if they do; or else `walk`
  int64_t leaves, bytes;  // of an output; that must move
  bool direct;            // kernels write the results; or else only the join rounds them
  bool streams;           // the L2 is to let the input go before all else

  Request(const Reduction& r, const Device& device, bool by_columns);

  int odd_vector() const { return kGranule / size; }

  // The kernel of this walk or a more general one, with so many loads or more; null where there is none.
  const Variant* variant(Kernel kernel, Walk walk, int vector, int loads = 1, int batches = 1) const {
    const int i = variants.serving(kernel, walk, vector, loads, batches);
    return i < 0 ? nullptr : &variants[i];
  }

  // Calls with each way to read the elements: (walk, vector).
  template <class Each>
  void for_each_reading(const Each& each) const {
    each(walk, vector);
    if (odd != walk) each(odd, odd_vector());
  }
};

// How outputs and leaves are to be cut, for a kernel of this shape.
struct Proposal {
  Shape shape;
  const Variant* variant;  // null: nothing is proposed
  Walk walk;
  int vector, warps;
  int64_t tile_outputs, tile_leaves;  // a power of two
  int64_t columns;                    // outputs of a batch
  bool by_column = false;  // neighbouring outputs write neighbouring partial sums; or else an output's are neighbours
  bool clusters = false;   // an output's splits may be a cluster, and are one where the device has such
};

// Where planners put what they propose for a request.
class Proposals {
 public:
  Proposals(const Request& request, const Tuning& tuning, std::vector<Plan>& plans)
      : request(request), tuning(tuning), plans(plans) {}

  // Adds the plan of a proposal, if a grid and the join can have its splits.
  void add(const Proposal& proposal);

  const Request& request;
  const Tuning& tuning;
  std::vector<Plan>& plans;
};

int64_t power_of_two_above(int64_t x);

// Elements of a leaf that a thread should have in flight: 1, 2, 4 or kDepth, as many as the longest leaf has.
int leaf_elements(int64_t length);

// Whether the fastest dim in memory is kept, so that a problem should be read by columns.
bool columnwise(const Problem& p);

// What all kernels propose, or the one that the tuning names. Where a line of memory holds neighbours both of an output and of
// other outputs, as in short rows and few columns, the problem is read both ways.
std::vector<Plan> propose_all(const Reduction& r, const Device& device, const Tuning& tuning);

// Sizes of a tile, powers of two up to `most`, of which `tiles(size)` are as few as a GPU can have at a time, or up to
// kTileSizes times halved: calls with each.
constexpr int kMostTiles = 16;  // a multiprocessor
constexpr int kTileSizes = 5;
template <class Tiles, class Each>
void for_each_tile_size(int64_t most, const Device& device, const Tiles& tiles, const Each& each) {
  int64_t size = 1;
  while (size < most && tiles(size) > int64_t{kMostTiles} * device.multiprocessors) size *= 2;
  if (size > most >> 2) size = std::max<int64_t>(1, most >> 2);
  for (int i = 0; i < kTileSizes && size <= most; ++i, size *= 2) each(size);
}

// The planners, each beside its kernel, as Shape names them: whether it takes the problem, and what it proposes.
#define GPUREDUCE_PLANNERS(X) X(dense) X(flat) X(ring) X(thin) X(columns) X(panels) X(expanded)
#define GPUREDUCE_PLANNER(kernel)        \
  namespace kernel##_kernel {            \
    bool takes(const Request& request);  \
    void propose(Proposals & proposals); \
  }
GPUREDUCE_PLANNERS(GPUREDUCE_PLANNER)
#undef GPUREDUCE_PLANNER

}  // namespace gpureduce
