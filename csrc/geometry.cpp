#include "geometry.h"

#include <stdexcept>

namespace gpureduce {

namespace {

// A tensor whose elements an int64 counts has no more dims of two and more elements than this.
constexpr int kMaxLong = 63;

// Dims of stride 0 come first, then the others by decreasing stride; equal ones stay in logical order.
template <class Dim>
void insert(Dim* dims, int& rank, const Dim& dim) {
  int at = rank++;
  for (; at > 0 && dims[at - 1].stride != 0 && (dim.stride == 0 || dims[at - 1].stride < dim.stride); --at)
    dims[at] = dims[at - 1];
  dims[at] = dim;
}

template <class Dim>
void append(DimList<Dim>& list, const Dim& dim, const char* what) {
  if (list.full())
    throw std::invalid_argument("sum: the input has more than " + std::to_string(kMaxRank) + " " + what +
                                " dims of more than one element that no common stride can walk");
  list.push_back(dim);
}

}  // namespace

Problem make_problem(const InputDim* dims, size_t rank) {
  Problem p;
  int longs = 0;
  for (size_t d = 0; d < rank; ++d) {
    (dims[d].reduced ? p.length : p.outputs) *= dims[d].size;
    longs += dims[d].size != 1;
  }
  if (p.outputs == 0 || p.length == 0) return p;  // nothing is read
  if (longs > kMaxLong) throw std::invalid_argument("sum: the input has more elements than an int64 counts");

  // The contract orders the reduced dims. Kept dims may stand in any order: here the fastest in memory is the last, and
  // expanded dims are the first, since they read again what the caches hold.
  ReducedDim reduced[kMaxLong];
  KeptDim kept[kMaxLong];
  int reduced_rank = 0, kept_rank = 0;
  for (size_t d = 0; d < rank; ++d) {
    const InputDim& dim = dims[d];
    if (dim.size == 1) continue;
    if (dim.reduced) insert(reduced, reduced_rank, {dim.size, dim.stride});
    else insert(kept, kept_rank, {dim.size, dim.stride, dim.out_stride});
  }
  for (int i = 0; i < reduced_rank; ++i) {
    const ReducedDim& d = reduced[i];
    if (!p.reduced.empty() && p.reduced.back().stride == d.size * d.stride)
      p.reduced.back() = {p.reduced.back().size * d.size, d.stride};
    else append(p.reduced, d, "reduced");
  }
  for (int i = 0; i < kept_rank; ++i) {
    const KeptDim& d = kept[i];
    if (!p.kept.empty() && p.kept.back().stride == d.size * d.stride && p.kept.back().out_stride == d.size * d.out_stride)
      p.kept.back() = {p.kept.back().size * d.size, d.stride, d.out_stride};
    else append(p.kept, d, "kept");
  }
  return p;
}

std::string Problem::str() const {
  auto dim = [](int64_t size, int64_t stride) { return std::to_string(size) + " (stride " + std::to_string(stride) + ")"; };
  std::string text = "outputs " + std::to_string(outputs) + ", elements each " + std::to_string(length) + "; kept";
  for (const KeptDim& d : kept) text += " " + dim(d.size, d.stride);
  if (kept.empty()) text += " none";
  text += "; reduced";
  for (const ReducedDim& d : reduced) text += " " + dim(d.size, d.stride);
  if (reduced.empty()) text += " none";
  return text;
}

}  // namespace gpureduce
