#include "variance.h"

#include "pairs.h"

namespace gpureduce::cpu {

namespace {

using variance::Moments;

// The moments of neighbours in memory: differences from the first elements of their outputs.
class Deviations {
 public:
  explicit Deviations(const weighted::Input& input) : input_(input) {}

  // Room for the elements of a chunk, and for the first ones.
  struct Scratch { std::unique_ptr<double[]> elements{new double[kChunk]}, first{new double[kChunk]}; };

  void make(Offsets at, int64_t stride, int64_t first_stride, int64_t n, Scratch& scratch, Moments* to) const {
    double *const x = scratch.elements.get(), *const first = scratch.first.get();
    load(at.in, stride, n, x);
    load(at.out, first_stride, first_stride == 0 ? 1 : n, first);
    if (first_stride == 0) {
      for (int64_t i = 0; i < n; ++i) to[i] = variance::moments_of(x[i], first[0]);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = variance::moments_of(x[i], first[i]);
    }
  }

  double first(int64_t offset) const {
    double x = 0;
    load(offset, 0, 1, &x);
    return x;
  }

 private:
  template <class Real>  // double; a template, for `if constexpr` to leave complex numbers out
  void load(int64_t offset, int64_t stride, int64_t n, Real* to) const {
    switch (input_.dtype) {
#define GPUREDUCE_LOAD(name, type, kind, accumulator, wide, family)                       \
  case DType::name:                                                                       \
    if constexpr (Kind::kind == Kind::floating) {                                         \
      const type* from = static_cast<const type*>(input_.data) + offset;                  \
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<Real>(value(from[i * stride])); \
    }                                                                                     \
    break;
      GPUREDUCE_DTYPES(GPUREDUCE_LOAD)
#undef GPUREDUCE_LOAD
    }
    if (input_.negate)
      for (int64_t i = 0; i < n; ++i) to[i] = -to[i];
  }

  weighted::Input input_;
};

}  // namespace

void run(const variance::Reduction& r) {
  const Deviations deviations(r.input);
  const Nest<kMaxRank> kept = weighted::input_nest<kMaxRank>(r.problem.kept, r.problem.outputs);
  const Nest<kMaxRank> results = weighted::output_nest<kMaxRank>(r.problem);
  compute<Moments>(r.problem, deviations, [&](int64_t output, Moments moments) {
    const auto found = r.finishing(moments, deviations.first(kept.at(output).in));
    const int64_t place = results.at(output).out;
    store(r.variance, place, r.out, found.variance);
    store(r.mean, place, r.out, found.mean);
  });
}

}  // namespace gpureduce::cpu
