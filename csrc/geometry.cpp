#include "geometry.h"

#include <algorithm>
#include <stdexcept>

namespace gpureduce {

namespace {

void check_rank(size_t rank, const char* what) {
  if (rank > kMaxRank)
    throw std::invalid_argument("sum: the input has " + std::to_string(rank) + " " + what +
                                " dims of more than one element that no common stride can walk; at most " +
                                std::to_string(kMaxRank) + " are supported");
}

}  // namespace

Problem make_problem(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, const std::vector<bool>& reduce,
                     const std::vector<int64_t>& out_strides) {
  Problem p;
  std::vector<ReducedDim> reduced;
  std::vector<KeptDim> kept;
  for (size_t d = 0; d < sizes.size(); ++d) {
    (reduce[d] ? p.length : p.outputs) *= sizes[d];
    if (sizes[d] == 1) continue;
    if (reduce[d]) reduced.push_back({sizes[d], strides[d]});
    else kept.push_back({sizes[d], strides[d], out_strides[d]});
  }
  if (p.outputs == 0 || p.length == 0) return p;  // nothing is read

  // The contract: stride 0 first, in logical order, then by decreasing stride, equal strides in logical order.
  std::stable_sort(reduced.begin(), reduced.end(), [](const ReducedDim& a, const ReducedDim& b) {
    if ((a.stride == 0) != (b.stride == 0)) return a.stride == 0;
    return a.stride > b.stride;
  });
  for (const ReducedDim& d : reduced) {
    if (!p.reduced.empty() && p.reduced.back().stride == d.size * d.stride)
      p.reduced.back() = {p.reduced.back().size * d.size, d.stride};
    else p.reduced.push_back(d);
  }

  // Kept dims may stand in any order: fastest in memory last; expanded ones first, since they re-read what is cached.
  std::stable_sort(kept.begin(), kept.end(), [](const KeptDim& a, const KeptDim& b) {
    if ((a.stride == 0) != (b.stride == 0)) return a.stride == 0;
    return a.stride > b.stride;
  });
  for (const KeptDim& d : kept) {
    if (!p.kept.empty() && p.kept.back().stride == d.size * d.stride && p.kept.back().out_stride == d.size * d.out_stride)
      p.kept.back() = {p.kept.back().size * d.size, d.stride, d.out_stride};
    else p.kept.push_back(d);
  }
  check_rank(p.reduced.size(), "reduced");
  check_rank(p.kept.size(), "kept");
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
