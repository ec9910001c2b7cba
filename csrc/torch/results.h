// The memory of arguments and results, and torch's checks of `out` before it is written.
#pragma once

#include "backend.h"

namespace gpureduce {

template <class Int>
c10::SmallVector<Int, kCommonRank> result_sizes(at::ArrayRef<Int> sizes, const DimMask& reduce, bool keepdim) {
  c10::SmallVector<Int, kCommonRank> result;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!reduce[d]) result.push_back(sizes[d]);
    else if (keepdim) result.push_back(1);
  }
  return result;
}

// A new tensor on the device of `self`, like at::empty but without a dispatcher call.
at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& self);

// A tensor as kernels read one without strides: contiguous, and no lazy view.
inline at::Tensor plain(const at::Tensor& x) { return x.resolve_conj().resolve_neg().contiguous(); }

// Raise torch's errors unless `out` has this dtype, is strided, and is on this device.
void check_out_dtype(const at::Tensor& out, at::ScalarType dtype);
void check_out_place(const at::Tensor& out, at::Device device);

// Raises torch's error if a function that copies its result to `out` would need a gradient.
void check_out_gradient(const char* function, const at::Tensor& self, const at::Tensor& out);

// Checks that `out` has these sizes or can be resized to them. torch checks this only after it has changed the sizes.
void check_writable(const at::Tensor& out, at::IntArrayRef sizes);

}  // namespace gpureduce
