#include "cpu_exponents.h"

#include "../core/cpu/load.h"
#include "../core/numeric/exponents.h"
#include "cpu.h"

namespace gpureduce::cpu {

namespace {

// Makes e^(x - m) from runs of elements with one stride. The second strides lead to m.
template <class A>
class Exponents {
 public:
  explicit Exponents(const Reduction& r)
      : input_(r.input), largest_(static_cast<const A*>(r.largest)), negate_(r.negate), load_(loader_of<A>(r.in)) {}

  struct Scratch { std::unique_ptr<A[]> elements{new A[kChunk]}; };

  void make(Both at, Both step, int64_t n, Scratch& scratch, A* to) const {
    A* const x = scratch.elements.get();
    load_(input_, at.first, step.first, n, negate_, x);
    exponentials(x, largest_ + at.second, step.second, n, to);
  }

 private:
  const void* input_;
  const A* largest_;
  bool negate_;
  Loader<A> load_;
};

template <class A>
void run(const Reduction& r, const Problem& p) {
  compute<A>(p, Exponents<A>(r), [&](const Spot<Both>& place, A sum) { static_cast<A*>(r.output)[place.out] = sum; });
}

template <class A>
void finish(const A* sums, const A* largest, const Problem& p, void* out, DType t) {
  const auto kept = kept_nest<kMaxRank>(p);
  parallel_for(0, p.outputs, kTaskElements, [&](int64_t from, int64_t to) {
    const ExactFloats exact;
    for (int64_t i = from; i < to; ++i) store(out, kept.at(i).out, t, logarithm_of_sum(sums[i], largest[i]));
  });
}

}  // namespace

void run_exponents(const Reduction& r, bool beside_results) {
  Problem p = r.problem;
  if (beside_results)
    for (KeptDim& d : p.kept) d.second = d.out_stride;
  else p.number_outputs(&KeptDim::second);
  for (ReducedDim& d : p.reduced) d.second = 0;
  if (r.accumulator == Accumulator::f32) run<float>(r, p);
  else run<double>(r, p);
}

void finish_exponents(Accumulator type, const void* sums, const void* largest, const Problem& p, void* out, DType t) {
  if (type == Accumulator::f32) finish(static_cast<const float*>(sums), static_cast<const float*>(largest), p, out, t);
  else finish(static_cast<const double*>(sums), static_cast<const double*>(largest), p, out, t);
}

}  // namespace gpureduce::cpu
