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

// Makes places from runs of elements with one stride. The second strides count the elements.
template <class In>
class Places {
 public:
  explicit Places(const Reduction& r)
      : input_(static_cast<const In*>(r.input)), negate_(r.negate), smallest_(r.map == Map::negative) {}

  struct Scratch {};

  void make(Both at, Both step, int64_t n, Scratch&, Indexed* to) const {
    const In* const from = input_ + at.first;
    for (int64_t i = 0; i < n; ++i)
      to[i] = {indices::place_of(signed_value(from[i * step.first], negate_), smallest_), at.second + i * step.second};
  }

 private:
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
