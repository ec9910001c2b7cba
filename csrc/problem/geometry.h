// From sizes, strides and reduced dims to a canonical problem. Pure C++: no torch, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../numeric/finish.h"
#include "../numeric/variance.h"
#include "engine.h"

namespace gpureduce {

constexpr int kMaxRank = 32;  // dims that stay apart after merging, kept and reduced each
constexpr int kFastRank = 4;  // and up to this many in the kernels compiled for a dtype

// Strides are in elements. `second` is the second input's, and 0 where there is none.
struct ReducedDim { int64_t size, stride, second; };
struct KeptDim { int64_t size, stride, out_stride, second; };

// A list of dims that allocates no memory: a small call spends most of its host time on allocations.
template <class Dim>
class DimList {
 public:
  DimList() {}  // neither this nor a copy touches dims that are not there: all together are a kilobyte
  DimList(const DimList& other) { *this = other; }
  DimList& operator=(const DimList& other) {
    size_ = other.size_;
    for (size_t i = 0; i < size_; ++i) dims_[i] = other.dims_[i];
    return *this;
  }

  void push_back(const Dim& dim) { dims_[size_++] = dim; }
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

// A reduction of `outputs` results over `length` elements each, of one input or of two. Dims of size 1 are gone, and neighbours
// that one stride of each tensor can walk are merged. `reduced` stands in the contract's element order (slowest first), by the
// first input's strides alone. `kept` stands by decreasing stride of the larger input, so that the last one is the fastest in
// memory; outputs are numbered in that order.
//
// For example weights (8, 1) of rows (8, 64), summed over dim 0: reduced 8 (strides 64 and 1), kept 64 (strides 1 and 0).
struct Problem {
  int64_t outputs = 1;
  int64_t length = 1;
  bool second_larger = false;  // the second input has more elements than the first
  DimList<KeptDim> kept;
  DimList<ReducedDim> reduced;

  void swap_inputs();  // which changes no element's place in the order
  std::string str() const;
};

// A dim of the input. `out_stride` is ignored where it is reduced.
struct InputDim {
  int64_t size, stride, out_stride;
  bool reduced;
  int64_t second;
};

// Throws std::invalid_argument, of whose text `inputs` is the begin, when more than kMaxRank dims stay apart.
Problem make_problem(const InputDim* dims, size_t rank, const char* inputs = "sum: the input has");

// Whether neighbours in the larger input's memory belong to different outputs.
bool has_columns(const Problem& problem);

// Everything that a backend needs to know. The pointers include the storage offset.
struct Reduction {
  Problem problem;
  const void* input;
  void* output;
  DType in, out;
  Accumulator accumulator;
  Map map = Map::value;    // of each element
  bool negate = false;     // the input is a lazily negated view
  bool conjugate = false;  // the input is a lazily conjugated view
  Finish finish = Finish::none;

  Addends addends = Addends::values;
  // Of products: the second input, the type in which they are rounded, and whether one counts as 1 if it is not zero.
  const void* second = nullptr;
  DType second_dtype{};
  bool second_negate = false;
  Accumulator product{};
  bool truth = false;
  // Of deviations, whose output is the variance: the mean, the count's correction, and whether the root is wanted.
  void* mean = nullptr;
  double correction = 0;
  bool root = false;

  bool native = true;  // kernels without PTX run on its device
  Engine engine{};     // these two as classify() says
  ResultPath path{};

  variance::Finishing finishing() const { return {problem.length, correction, root}; }
};

// Fills in `engine` and `path` from all that stands above them.
void classify(Reduction& reduction);

}  // namespace gpureduce
