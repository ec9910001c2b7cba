#include "cpu_weighted.h"

#include "../core/cpu/load.h"
#include "cpu.h"

namespace gpureduce::cpu {

namespace {

// One of the two inputs.
struct Input {
  const void* data;
  DType dtype;
  bool negate;  // a lazily negated view
};

// Makes addends from products of runs of elements, each run with one stride.
template <class Product, class Acc>
class Products {
 public:
  explicit Products(const Reduction& r)
      : self_{r.input, r.in, r.negate},
        weight_{r.second, r.second_dtype, r.second_negate},
        truth_(r.truth),
        first_(loader_of<Product>(r.in)),
        second_(loader_of<Product>(r.second_dtype)) {}

  // Room for the factors of a chunk.
  struct Scratch { std::unique_ptr<Product[]> first{new Product[kChunk]}, second{new Product[kChunk]}; };

  // Writes n addends; `at` are the offsets of the first elements.
  void make(Both at, Both step, int64_t n, Scratch& scratch, Acc* to) const {
    const Product* first = found(self_, first_, at.first, step.first, n, scratch.first.get());
    const Product* second = found(weight_, second_, at.second, step.second, n, scratch.second.get());
    if constexpr (std::is_same_v<Product, Acc> && !std::is_integral_v<Acc>) {
      for (int64_t i = 0; i < n; ++i) to[i] = weighted::times(first[i], second[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = weighted::counted<Acc>(weighted::times(first[i], second[i]), truth_);
    }
  }

 private:
  // Contiguous elements of type Product are used in place.
  static const Product* found(const Input& input, Loader<Product> loader, int64_t offset, int64_t stride, int64_t n,
                              Product* to) {
    const bool as_it_is = std::is_same_v<Product, float>    ? input.dtype == DType::Float
                          : std::is_same_v<Product, double> ? input.dtype == DType::Double
                                                            : input.dtype == DType::Long;
    if (as_it_is && stride == 1 && !input.negate) return static_cast<const Product*>(input.data) + offset;
    loader(input.data, offset, stride, n, input.negate, to);
    return to;
  }

  Input self_, weight_;
  bool truth_;
  Loader<Product> first_, second_;
};

template <class Product, class Acc>
void compute_products(const Reduction& r) {
  compute<Acc>(r.problem, Products<Product, Acc>(r),
               [&](const Spot<Both>& place, Acc sum) { store(r.output, place.out, r.out, sum); });
}

}  // namespace

void run_weighted(const Reduction& r) {
  if (r.accumulator == Accumulator::f32) return compute_products<float, float>(r);
  if (r.accumulator == Accumulator::f64) return compute_products<double, double>(r);
  if (r.product == Accumulator::f32) return compute_products<float, int64_t>(r);
  if (r.product == Accumulator::f64) return compute_products<double, int64_t>(r);
  compute_products<int64_t, int64_t>(r);
}

}  // namespace gpureduce::cpu
