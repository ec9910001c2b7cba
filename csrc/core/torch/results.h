// The memory of arguments and results, and torch's checks of `out` before it is written.
#pragma once

#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>
#include <ATen/ops/view_as_real.h>

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

// A contiguous copy of integers, which nobody else can change between a check of them and their use.
at::Tensor own_copy(const at::Tensor& x);

// Makes a real or complex `out` of a real or complex `x` with f(input, output), which takes real tensors: once for each part;
// or once for both, which then lie in a last dim. The imaginary part for a real `x` is 0.
template <class F>
void by_parts(const at::Tensor& x, const at::Tensor& out, F f) {
  const at::Tensor real = x.is_complex() ? at::real(x) : x;
  if (!out.is_complex()) return f(real, out);
  if (x.is_complex() && !x.is_conj() && !x.is_neg()) return f(at::view_as_real(x), at::view_as_real(out));  // reads x once
  f(real, at::real(out));
  if (x.is_complex()) f(at::imag(x), at::imag(out));
  else at::imag(out).zero_();
}

// Warns once per process, as torch does, if the result of complex elements is real. To bool nothing is lost.
void warn_if_imaginary_is_lost(at::ScalarType input, at::ScalarType result);

// Raise torch's errors unless `out` has this dtype, is strided, and is on this device.
void check_out_dtype(const at::Tensor& out, at::ScalarType dtype);
void check_out_place(const at::Tensor& out, at::Device device);

// Raises torch's error if a function that copies its result to `out` would need a gradient.
void check_out_gradient(const char* function, const at::Tensor& self, const at::Tensor& out);

// Checks that `out` has these sizes or can be resized to them. torch checks this only after it has changed the sizes.
void check_writable(const at::Tensor& out, at::IntArrayRef sizes);

}  // namespace gpureduce
