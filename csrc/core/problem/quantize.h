// A call that rounds rows to float8, as backends see it. Pure C++: no torch, no CUDA.
#pragma once

#include "rows.h"

namespace gpureduce {

// What is rounded of the operands x and g: x; silu(x) * g; or the rms_norm of x, or of x + g.
enum class Rounded : uint8_t { elements, silu, norm };

struct QuantizeCall {
  RowsCall rows;  // x, g and weight; a row has one dim
  Rounded what = Rounded::elements;
  float offset = 0;        // of a norm: added to each weight
  void* sum = nullptr;     // of a norm with g: x + g, contiguous, of g's dtype
  void* values = nullptr;  // contiguous, of `dtype`
  void* scales = nullptr;  // contiguous, per block of a row: float32, or float8_e8m0fnu if they are powers of two
  DType dtype = DType::Float8_e4m3fn;
  bool powers = false;
  int64_t block = 0;  // elements of a block, a power of two; 0: the row is one

  int64_t blocks() const { return block ? (rows.length + block - 1) / block : 1; }  // of a row
};

}  // namespace gpureduce
