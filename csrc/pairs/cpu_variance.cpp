#include "cpu_variance.h"

#include "../core/cpu/load.h"
#include "../core/numeric/variance.h"
#include "cpu.h"

namespace gpureduce::cpu {

namespace {

// Makes moments from runs of elements with one stride: differences from the first elements of their outputs, and squares.
class Deviations {
 public:
  explicit Deviations(const Reduction& r) : input_(r.input), negate_(r.negate), load_(loader_of<double>(r.in)) {}

  // Room for the elements of a chunk, and for the first ones.
  struct Scratch { std::unique_ptr<double[]> elements{new double[kChunk]}, first{new double[kChunk]}; };

  void make(Both at, Both step, int64_t n, Scratch& scratch, Moments* to) const {
    double *const x = scratch.elements.get(), *const first = scratch.first.get();
    load(at.first, step.first, n, x);
    load(at.second, step.second, step.second == 0 ? 1 : n, first);
    if (step.second == 0) {
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
  void load(int64_t offset, int64_t stride, int64_t n, double* to) const { load_(input_, offset, stride, n, negate_, to); }

  const void* input_;
  bool negate_;
  Loader<double> load_;
};

}  // namespace

void run_variance(const Reduction& r) {
  Problem p = r.problem;
  for (KeptDim& d : p.kept) d.second = d.stride;  // the second operand is the output's first element
  const Deviations deviations(r);
  const variance::Finishing finishing = r.finishing();
  compute<Moments>(p, deviations, [&](const Spot<Both>& place, Moments moments) {
    const auto found = finishing(moments, deviations.first(place.in.second));
    store(r.output, place.out, r.out, found.variance);
    store(r.mean, place.out, r.out, found.mean);
  });
}

}  // namespace gpureduce::cpu
