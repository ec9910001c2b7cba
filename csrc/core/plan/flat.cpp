#include "flat.h"

#include <algorithm>

#include "propose.h"

namespace gpureduce::flat_kernel {

namespace {

// The most elements per load, up to a granule, with which an input's rows are whole aligned loads.
template <class Step>
int row_piece(const Request& q, const void* address, DType dtype, Step step) {
  const uint64_t size = info(dtype).size;
  uint64_t combined = reinterpret_cast<uintptr_t>(address) | kGranule | q.p.length * size;
  for (const KeptDim& d : q.p.kept) combined |= static_cast<uint64_t>(step(d)) * size;
  return static_cast<int>((combined & -combined) / size);
}

// The same for both inputs. A second input that is one element along a row sets no limit.
int row_piece(const Request& q) {
  const int most = std::max(1, kGranule / q.element_bytes);
  const int piece = std::min(most, row_piece(q, q.r.input, q.r.in, [](const KeptDim& d) { return d.stride; }));
  if (q.r.addends != Addends::products || q.p.reduced.back().second == 0) return piece;
  return std::min(piece, row_piece(q, q.r.second, q.r.second_dtype, [](const KeptDim& d) { return d.second; }));
}

void propose_loads(Proposals& proposals, int vector) {
  const Request& q = proposals.request;
  const int bytes = vector * q.element_bytes;
  const int64_t loads = ceil_div(q.p.length, vector);
  if (loads > int64_t{kWarp} * flat_groups(bytes, vector)) return;
  const Variant* variant = q.variant(Kernel::flat, q.walk, vector);
  if (!variant) return;
  FlatPlan plan{};
  plan.width = static_cast<int>(std::min<int64_t>(kWarp, power_of_two_above(loads)));
  plan.groups = static_cast<int>(power_of_two_above(ceil_div(loads, kWarp)));
  const int in_flight = flat_loads(bytes, vector, variant->walk == Walk::dense, plan.groups > 1, size_of(q.r.accumulator));
  const int warp_rows = in_flight / plan.groups * (kWarp / plan.width);
  for (int warps : {4, 8})
    proposals.add(
        {plan, variant, q.walk, vector, warps, int64_t{warps} * warp_rows, power_of_two_above(q.leaves), q.p.outputs});
}

}  // namespace

bool takes(const Request& q) { return !q.by_columns && q.p.length <= kLanes && q.p.outputs < kMaxGrid; }

// Rows that are whole pieces of memory are read in loads of 4 bytes or more. Other rows are read in vectors, if their dims are
// nested, or by single elements.
void propose(Proposals& proposals) {
  const Request& q = proposals.request;
  const int piece = row_piece(q);
  const bool in_pieces = q.typed && q.walk == Walk::dense && piece * q.element_bytes >= 4;
  const bool in_vectors =
      q.walk == Walk::nested && q.vector > 1 && q.p.length > 8 * q.vector && q.variant(Kernel::flat, q.walk, q.vector);
  if (in_pieces) propose_loads(proposals, piece);
  else propose_loads(proposals, in_vectors ? q.vector : 1);
}

}  // namespace gpureduce::flat_kernel
