#include "results.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <cstring>

namespace gpureduce {

at::Tensor own_copy(const at::Tensor& x) {
  const at::Tensor own = allocate(x.sizes(), x.scalar_type(), x);
  const bool as_it_is = x.is_cpu() && x.is_contiguous() && !x.is_neg() && x.numel() > 0;
  if (as_it_is) std::memcpy(own.mutable_data_ptr(), x.const_data_ptr(), x.nbytes());
  else own.copy_(x);
  return own;
}

void warn_if_imaginary_is_lost(at::ScalarType input, at::ScalarType result) {
  if (at::isComplexType(input) && !at::isComplexType(result) && result != at::kBool) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
}

void check_out_dtype(const at::Tensor& out, at::ScalarType dtype) {
  TORCH_CHECK(out.scalar_type() == dtype, "Expected out tensor to have dtype ", dtype, ", but got ", out.scalar_type(),
              " instead");
}

void check_out_place(const at::Tensor& out, at::Device device) {
  TORCH_CHECK(out.device() == device, "Expected out tensor to have device ", device, ", but got ", out.device(), " instead");
  TORCH_CHECK(out.layout() == at::kStrided, "Expected out tensor to have strided layout, but got ", out.layout(), " instead");
  TORCH_CHECK(!out._is_zerotensor(), "ZeroTensors are immutable. Please use the materialized zero tensor ",
              "obtained using .clone() if you want a mutable tensor.");
}

void check_out_gradient(const char* function, const at::Tensor& self, const at::Tensor& out) {
  TORCH_CHECK(!(at::GradMode::is_enabled() && (self.requires_grad() || out.requires_grad())), function,
              "(): functions with out=... arguments don't support automatic differentiation, but one of the arguments requires "
              "grad.");
}

void check_writable(const at::Tensor& out, at::IntArrayRef sizes) {
  if (out.sizes() == sizes) return at::assert_no_internal_overlap(out);  // a resized tensor is contiguous
  const c10::Storage& storage = out.storage();
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, out.itemsize(), out.storage_offset());
  TORCH_CHECK(storage.resizable() || bytes <= storage.nbytes(), "Trying to resize storage that is not resizable: out has ",
              storage.nbytes(), " bytes, and a result of sizes ", sizes, " needs ", bytes);
}

}  // namespace gpureduce
