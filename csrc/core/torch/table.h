// The rows of the table of operations as families (plumbing.h): what a row's ordinary operator (ops.cpp) and the one that adds
// exactly (exact/torch.cpp) have in common.
#pragma once

#include "batch.h"
#include "plumbing.h"

namespace gpureduce {

// A call after its checks.
template <class Int>
struct TableCall {
  SizesOf<Int> sizes;
  at::ScalarType dtype;
  DimMask reduce;
};

// Checks a call of an operation. Raises torch's errors.
template <class Int>
TableCall<Int> checked(Operation op, const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                       const at::Tensor* out);

// A family without compute().
template <Operation op, bool exact = false>
struct TableReduction {
  static const char* name() { return operator_name<op, exact>(); }
  static constexpr const char* kArguments = "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None";
  // For sums, the dtype of `out` decides. Others get dtype= itself: for norms of complex numbers it is complex, unlike the
  // result's dtype.
  static constexpr bool kOutHasDtype = info(op).has_dtype(), kHasGradient = info(op).has_gradient();
  static constexpr bool autocasts(c10::DeviceType device) {
    return device == at::kCUDA ? info(op).autocasts : info(op).autocasts_on_cpu();
  }
  using Function = gpureduce::Functional;

  template <class Int>
  static TableCall<Int> check(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype,
                              const at::Tensor* out) {
    return checked<Int>(op, self, dim, keepdim, dtype, out);
  }

  static void refuse(const TableCall<int64_t>& call, const at::Tensor& self, OptionalDims, bool keepdim, OptionalDtype) {
    make_reduction(op, self, call.reduce, call.dtype, {}, keepdim);
  }

  GPUREDUCE_SMALL static at::Tensor batched(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalDtype dtype) {
    return batched_reduction(name(), std::array{self}, dim, keepdim,
                             [&](const std::array<at::Tensor, 1>& input, OptionalDims dims, bool keeps) {
                               return functional<op, exact>().call(input[0], dims, keeps, dtype);
                             });
  }
};

}  // namespace gpureduce
