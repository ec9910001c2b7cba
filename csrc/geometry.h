// From sizes, strides and reduced dims to a canonical problem. Pure C++: no torch, no CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtypes.h"

namespace gpureduce {

constexpr int kMaxRank = 32;  // dims that stay apart after merging, kept and reduced each
constexpr int kFastRank = 4;  // and up to this many in the kernels compiled for a dtype

struct ReducedDim { int64_t size, stride; };  // strides in elements
struct KeptDim { int64_t size, stride, out_stride; };

// A reduction of `outputs` results over `length` elements each. Dims of size 1 are gone, and neighbours that one stride can
// walk are merged. `reduced` stands in the contract's element order (slowest first). `kept` stands by decreasing input stride,
// so that the last one is the fastest in memory; outputs are numbered in that order.
struct Problem {
  int64_t outputs = 1;
  int64_t length = 1;
  std::vector<KeptDim> kept;
  std::vector<ReducedDim> reduced;

  std::string str() const;
};

// `reduce[d]` says whether dim d is reduced; `out_strides` has one entry a dim of the input, ignored where the dim is reduced.
// Throws std::invalid_argument when more than kMaxRank dims stay apart.
Problem make_problem(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, const std::vector<bool>& reduce,
                     const std::vector<int64_t>& out_strides);

// All that a backend is told. Pointers already include the storage offset.
struct Reduction {
  Problem problem;
  const void* input;
  void* output;
  DType in, out;
  Accumulator accumulator;
  Conversion conversion = Conversion::value;
  bool negate = false;     // the input is a lazily negated view
  bool conjugate = false;  // the input is a lazily conjugated view
};

}  // namespace gpureduce
