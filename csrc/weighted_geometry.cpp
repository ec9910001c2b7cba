// From the dims of two inputs to a canonical problem, as geometry.cpp does for one.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "weighted.h"

namespace gpureduce::weighted {

namespace {

// A tensor whose elements an int64 counts has no more dims of two and more elements than this.
constexpr int kMaxLong = 63;

// Keeps the order of dims for which `before` decides nothing.
template <class Before>
void insert(Dim* dims, int& rank, const Dim& dim, Before before) {
  int at = rank++;
  for (; at > 0 && before(dim, dims[at - 1]); --at) dims[at] = dims[at - 1];
  dims[at] = dim;
}

bool merges(const Dim& slow, const Dim& fast) {
  return slow.self == fast.size * fast.self && slow.weight == fast.size * fast.weight && slow.out == fast.size * fast.out;
}

void append(DimList<Dim>& list, const Dim& dim, const char* what) {
  if (!list.empty() && merges(list.back(), dim)) {
    list.back() = {list.back().size * dim.size, dim.self, dim.weight, dim.out};
    return;
  }
  if (list.full())
    throw std::invalid_argument("weighted_sum: self and weight have more than " + std::to_string(kMaxRank) + " " + what +
                                " dims of more than one element that no common strides can walk");
  list.push_back(dim);
}

// Stride 0 comes first, then the others by decreasing stride.
bool is_slower(int64_t a, int64_t b) { return b != 0 && (a == 0 || a > b); }

// How many different elements of an input the dims reach.
template <class Stride>
double distinct(const DimList<Dim>& a, const DimList<Dim>& b, Stride stride) {
  double count = 1;
  for (const DimList<Dim>* dims : {&a, &b})
    for (const Dim& d : *dims)
      if (stride(d) != 0) count *= static_cast<double>(d.size);
  return count;
}

int64_t of_self(const Dim& d) { return d.self; }
int64_t of_weight(const Dim& d) { return d.weight; }

}  // namespace

Problem make_problem(const InputDim* dims, size_t rank) {
  Problem p;
  int longs = 0;
  double selves = 1, weights = 1;
  for (size_t d = 0; d < rank; ++d) {
    (dims[d].reduced ? p.length : p.outputs) *= dims[d].size;
    longs += dims[d].size != 1;
    if (dims[d].self != 0) selves *= static_cast<double>(dims[d].size);
    if (dims[d].weight != 0) weights *= static_cast<double>(dims[d].size);
  }
  if (p.outputs == 0 || p.length == 0) return p;  // nothing is read
  if (longs > kMaxLong) throw std::invalid_argument("weighted_sum: the inputs have more elements than an int64 counts");

  // The contract orders the reduced dims by `self` alone; kept dims may stand in any order.
  Dim reduced[kMaxLong], kept[kMaxLong];
  int reduced_rank = 0, kept_rank = 0;
  const bool by_self = selves >= weights;
  const auto larger = [by_self](const Dim& d) { return by_self ? d.self : d.weight; };
  const auto smaller = [by_self](const Dim& d) { return by_self ? d.weight : d.self; };
  for (size_t d = 0; d < rank; ++d) {
    const InputDim& dim = dims[d];
    if (dim.size == 1) continue;
    if (dim.reduced)
      insert(reduced, reduced_rank, {dim.size, dim.self, dim.weight, 0},
             [](const Dim& a, const Dim& b) { return is_slower(a.self, b.self); });
    else
      insert(kept, kept_rank, {dim.size, dim.self, dim.weight, dim.out}, [&](const Dim& a, const Dim& b) {
        return larger(a) == larger(b) ? is_slower(smaller(a), smaller(b)) : is_slower(larger(a), larger(b));
      });
  }
  for (int i = 0; i < reduced_rank; ++i) append(p.reduced, reduced[i], "reduced");
  for (int i = 0; i < kept_rank; ++i) append(p.kept, kept[i], "kept");
  return p;
}

bool has_columns(const Problem& p) {
  if (p.kept.empty()) return false;
  if (p.reduced.empty()) return true;
  const bool by_self = distinct(p.kept, p.reduced, of_self) >= distinct(p.kept, p.reduced, of_weight);
  const int64_t across = by_self ? p.kept.back().self : p.kept.back().weight;
  const int64_t along = by_self ? p.reduced.back().self : p.reduced.back().weight;
  return across != 0 && (along == 0 || across < along);
}

}  // namespace gpureduce::weighted
