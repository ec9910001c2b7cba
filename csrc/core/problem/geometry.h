// From sizes, strides and reduced dims to a canonical problem. Pure C++: no torch, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../api.h"
#include "../numeric/finish.h"
#include "../numeric/variance.h"
#include "engine.h"

namespace gpureduce {

constexpr int kMaxRank = 32;  // most dims left after merging, for kept and for reduced dims
constexpr int kFastRank = 4;  // the same, for kernels compiled for a dtype

// Strides are in elements. `second` is the second input's stride, or 0 if there is none.
struct ReducedDim { int64_t size, stride, second; };
struct KeptDim { int64_t size, stride, out_stride, second; };

// A list of dims that allocates no memory: a small call spends most of its host time on allocations.
template <class Dim>
class DimList {
 public:
  DimList() {}  // neither this nor a copy writes unused dims, since the array is a kilobyte
  DimList(const DimList& other) { *this = other; }
  DimList& operator=(const DimList& other) {
    size_ = other.size_;
    for (size_t i = 0; i < size_; ++i) dims_[i] = other.dims_[i];
    return *this;
  }

  void push_back(const Dim& dim) { dims_[size_++] = dim; }
  void pop_back() { --size_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == kMaxRank; }
  Dim& back() { return dims_[size_ - 1]; }
  const Dim& back() const { return dims_[size_ - 1]; }
  const Dim& operator[](size_t i) const { return dims_[i]; }
  Dim* begin() { return dims_; }
  Dim* end() { return dims_ + size_; }
  const Dim* begin() const { return dims_; }
  const Dim* end() const { return dims_ + size_; }

 private:
  size_t size_ = 0;
  Dim dims_[kMaxRank];
};

// A reduction of one or two inputs to `outputs` results over `length` elements each. Dims of size 1 are dropped, and
// neighbouring dims that one stride per tensor can walk are merged. `reduced` is in the contract's element order (slowest
// first), by the first input's strides only. `kept` is sorted by decreasing stride of the larger input, so the last one is the
// fastest in memory; outputs are numbered in that order.
//
// For example weights (8, 1) of rows (8, 64), summed over dim 0: reduced 8 (strides 64 and 1), kept 64 (strides 1 and 0).
struct Problem {
  int64_t outputs = 1;
  int64_t length = 1;
  bool second_larger = false;  // the second input has more elements than the first
  DimList<KeptDim> kept;
  DimList<ReducedDim> reduced;

  void swap_inputs();                              // does not change the order of elements
  void number_outputs(int64_t KeptDim::* stride);  // sets the stride of each kept dim for a tensor of one element per output
  GPUREDUCE_API std::string str() const;
};

// A dim of the input. `out_stride` is ignored if the dim is reduced.
struct InputDim {
  int64_t size, stride, out_stride;
  bool reduced;
  int64_t second;
};

// Throws std::invalid_argument if more than kMaxRank dims are left after merging, or if an int64 cannot count the elements.
// `inputs` begins its text.
GPUREDUCE_API Problem make_problem(const InputDim* dims, size_t rank, const char* inputs = "sum: the input has");

// True if neighbours in the larger input's memory belong to different outputs.
GPUREDUCE_API bool has_columns(const Problem& problem);

// A call, as backends see it. The pointers include the storage offset.
struct Reduction {
  Problem problem;
  const void* input;
  void* output;
  DType in, out;
  Accumulator accumulator;
  Map map = Map::value;    // applied to each element
  bool negate = false;     // the input is a lazily negated view
  bool conjugate = false;  // the input is a lazily conjugated view
  Finish finish = Finish::none;

  Addends addends = Addends::values;
  // For products: the second input, the type that products are rounded to, and `truth`: a non-zero product counts as 1.
  const void* second = nullptr;
  DType second_dtype{};
  bool second_negate = false;
  Accumulator product{};
  bool truth = false;
  // For exponents: the largest element of each output, in the order of the outputs' numbers, of the accumulator's type.
  const void* largest = nullptr;
  // For deviations, whose `output` is the variance: the mean's memory, the correction of the count, and `root`: the variance's
  // root is the result.
  void* mean = nullptr;
  double correction = 0;
  bool root = false;

  bool native = true;  // kernels without PTX run on its device
  Engine engine{};     // engine and path are set by classify()
  ResultPath path{};

  variance::Finishing finishing() const { return {problem.length, correction, root}; }
};

// Sets `engine` and `path` from the other fields.
GPUREDUCE_API void classify(Reduction& reduction);

}  // namespace gpureduce
