#include "cpu_indices.h"

#include "../core/numeric/indices.h"
#include "cpu.h"

namespace gpureduce::cpu {

namespace {

template <class In>
auto signed_value(In x, bool negate) {
  if constexpr (std::is_integral_v<In>) return negate ? static_cast<In>(0 - static_cast<uint64_t>(x)) : x;
  else if constexpr (std::is_same_v<In, Boolean>) return x;
  else return negate ? -value(x) : value(x);
}

// Finds the places of elements, and joins them. The second strides count the elements.
template <class In>
class Places {
 public:
  explicit Places(const Reduction& r)
      : input_(static_cast<const In*>(r.input)), negate_(r.negate), smallest_(r.map == Map::negative) {}

  struct Scratch {};

  // Joins elements `begin` to `end` (exclusive) of `width` neighbouring outputs.
  void fold(const Problem& p, Both place, int64_t width, int64_t begin, int64_t end, Indexed* to) const {
    const Both step = p.reduced.empty() ? Both{0, 0} : stride_of<Both>(p.reduced.back());
    const int64_t across = p.kept.empty() ? 0 : p.kept.back().stride;
    std::fill(to, to + width, padding<Indexed>());
    Walker walker(p.reduced, begin);
    for (int64_t run; begin < end; begin += run) {
      run = std::min({walker.left(), end - begin, width == 1 ? kRun : kLongRun});
      const Both at = place + walker.place();
      if (width == 1) fold_row(at, step, run, *to);
      else if (across == 1) fold_columns(at, step, run, 1, width, to);
      else fold_columns(at, step, run, across, width, to);
      walker.advance(run);
    }
  }

 private:
  using P = indices::Place<decltype(signed_value(In{}, false))>;
  static constexpr int64_t kRun = 512, kLongRun = 1 << 30;

  P at(const In* x) const { return indices::place_of(signed_value(*x, negate_), smallest_); }

  // First the largest place of a run, then its first element: both loops are vectorized.
  void fold_row(Both place, Both step, int64_t n, Indexed& best) const {
    const In* const from = input_ + place.first;
    P places[kRun], top = lowest<P>();
    const auto find = [&](int64_t stride) {
      for (int64_t i = 0; i < n; ++i) {
        places[i] = at(from + i * stride);
        top = std::max(top, places[i]);
      }
    };
    if (step.first == 1) find(1);
    else find(step.first);
    if (top < best.place) return;
    const int64_t first = std::find(places, places + n, top) - places;
    best = best + Indexed{top, place.second + first * step.second};
  }

  // Indices grow along a run, so of equal elements the first one stays.
  void fold_columns(Both place, Both step, int64_t n, int64_t across, int64_t width, Indexed* to) const {
    P tops[kSide], rows[kSide];
    std::fill(tops, tops + width, lowest<P>());
    std::fill(rows, rows + width, P{0});
    for (int64_t i = 0; i < n; ++i) {
      const In* const from = input_ + place.first + i * step.first;
      for (int64_t c = 0; c < width; ++c) {
        const P found = at(from + c * across);
        rows[c] = found > tops[c] ? static_cast<P>(i) : rows[c];
        tops[c] = found > tops[c] ? found : tops[c];
      }
    }
    for (int64_t c = 0; c < width; ++c) to[c] = to[c] + Indexed{tops[c], place.second + rows[c] * step.second};
  }

  const In* input_;
  bool negate_, smallest_;
};

template <class In>
void run(const Reduction& r) {
  compute<Indexed>(r.problem, Places<In>(r),
                   [&](const Spot<Both>& place, Indexed found) { static_cast<int64_t*>(r.output)[place.out] = found.index; });
}

}  // namespace

void run_indices(const Reduction& r) {
  switch (r.in) {
#define GPUREDUCE_RUN(name, type, kind, accumulator, wide, family)  \
  case DType::name:                                                 \
    if constexpr (Kind::kind != Kind::complex) return run<type>(r); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_RUN)
#undef GPUREDUCE_RUN
  }
}

}  // namespace gpureduce::cpu
