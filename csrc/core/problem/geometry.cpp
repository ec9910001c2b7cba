#include "geometry.h"

#include <stdexcept>
#include <utility>

namespace gpureduce {

namespace {

// A tensor whose elements an int64 counts has at most this many dims of two or more elements.
constexpr int kMaxLong = 63;

// Inserts in sorted order, behind equal dims.
template <class Dim, class Before>
void insert(Dim* dims, int& rank, const Dim& dim, Before before) {
  int at = rank++;
  for (; at > 0 && before(dim, dims[at - 1]); --at) dims[at] = dims[at - 1];
  dims[at] = dim;
}

// Stride 0 comes first, then the others by decreasing stride.
bool is_slower(int64_t a, int64_t b) { return b != 0 && (a == 0 || a > b); }

bool merges(const ReducedDim& slow, const ReducedDim& fast) {
  return slow.stride == fast.size * fast.stride && slow.second == fast.size * fast.second;
}
bool merges(const KeptDim& slow, const KeptDim& fast) {
  return slow.stride == fast.size * fast.stride && slow.second == fast.size * fast.second &&
         slow.out_stride == fast.size * fast.out_stride;
}

template <class Dim>
void append(DimList<Dim>& list, const Dim& dim, const char* inputs, const char* what) {
  if (!list.empty() && merges(list.back(), dim)) {
    const int64_t size = list.back().size * dim.size;
    list.back() = dim;
    list.back().size = size;
    return;
  }
  if (list.full())
    throw std::invalid_argument(std::string(inputs) + " more than " + std::to_string(kMaxRank) + " " + what +
                                " dims of more than one element that no common strides can walk");
  list.push_back(dim);
}

}  // namespace

Problem make_problem(const InputDim* dims, size_t rank, const char* inputs) {
  Problem p;
  int longs = 0;
  double firsts = 1, seconds = 1;  // distinct elements in memory
  for (size_t d = 0; d < rank; ++d) {
    (dims[d].reduced ? p.length : p.outputs) *= dims[d].size;
    longs += dims[d].size != 1;
    if (dims[d].stride != 0) firsts *= static_cast<double>(dims[d].size);
    if (dims[d].second != 0) seconds *= static_cast<double>(dims[d].size);
  }
  if (p.outputs == 0 || p.length == 0) return p;  // nothing is read
  if (longs > kMaxLong) throw std::invalid_argument(std::string(inputs) + " more elements than an int64 counts");

  // The contract orders the reduced dims. Kept dims may have any order. Here the fastest dim in memory comes last, and expanded
  // dims come first, since they read again what the caches hold.
  ReducedDim reduced[kMaxLong];
  KeptDim kept[kMaxLong];
  int reduced_rank = 0, kept_rank = 0;
  p.second_larger = seconds > firsts;
  const bool by_second = p.second_larger;
  for (size_t d = 0; d < rank; ++d) {
    const InputDim& dim = dims[d];
    if (dim.size == 1) continue;
    if (dim.reduced)
      insert(reduced, reduced_rank, {dim.size, dim.stride, dim.second},
             [](const ReducedDim& a, const ReducedDim& b) { return is_slower(a.stride, b.stride); });
    else
      insert(kept, kept_rank, {dim.size, dim.stride, dim.out_stride, dim.second}, [&](const KeptDim& a, const KeptDim& b) {
        const bool alike = by_second ? a.second == b.second : a.stride == b.stride;
        return by_second != alike ? is_slower(a.second, b.second) : is_slower(a.stride, b.stride);
      });
  }
  for (int i = 0; i < reduced_rank; ++i) append(p.reduced, reduced[i], inputs, "reduced");
  for (int i = 0; i < kept_rank; ++i) append(p.kept, kept[i], inputs, "kept");
  return p;
}

void Problem::swap_inputs() {
  second_larger = !second_larger;
  for (KeptDim& d : kept) std::swap(d.stride, d.second);
  for (ReducedDim& d : reduced) std::swap(d.stride, d.second);
}

void Problem::number_outputs(int64_t KeptDim::* stride) {
  int64_t next = 1;
  for (size_t d = kept.size(); d-- > 0;) {
    KeptDim& dim = kept.begin()[d];
    dim.*stride = next;
    next *= dim.size;
  }
}

bool has_columns(const Problem& p) {
  if (p.kept.empty()) return false;
  if (p.reduced.empty()) return true;
  const int64_t across = p.second_larger ? p.kept.back().second : p.kept.back().stride;
  const int64_t along = p.second_larger ? p.reduced.back().second : p.reduced.back().stride;
  return across != 0 && (along == 0 || across < along);
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
