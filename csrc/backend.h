// What the op asks of a device, and how a call is turned into that: shared by the op and by the private ops for tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "dispatch.h"
#include "plan.h"

namespace gpureduce {

// What has an entry a dim allocates nothing up to this rank.
constexpr unsigned kCommonRank = 8;
using DimMask = c10::SmallVector<bool, kCommonRank>;

// The reduced dims as a mask; None and () mean all. Errors as torch.sum's.
DimMask reduced_dims(OptionalDims dim, int64_t rank);

// The dtype of the result: `dtype`, or else torch's choice (float32 for float8). Errors as torch's.
at::ScalarType result_type(Operation op, at::ScalarType input, OptionalDtype dtype);

// The dtype of the result that is written to `out`. Errors as torch's.
at::ScalarType out_type(Operation op, const at::Tensor& self, OptionalDtype dtype, const at::Tensor& out);

// Views, dtypes and flags of a call as a backend sees them. `out` may be undefined to plan only; then `result` says its dtype.
Reduction make_reduction(const at::Tensor& self, const DimMask& reduce, at::ScalarType result, const at::Tensor& out,
                         bool keepdim);

// The dtype's row in dtypes.h; NotImplementedError naming `what` where there is none.
DType dtype_of(at::ScalarType type, const char* what);

namespace cuda {

// What the driver says of a device, asked once.
const Device& facts(at::Device device);

Plan plan(const Reduction& reduction, at::Device device, const Tuning& tuning);

// Launches what was planned with `tuning` on the current stream of `device`, which need not be the current device.
void run(const Reduction& reduction, const Plan& plan, at::Device device, const Tuning& tuning);

}  // namespace cuda

}  // namespace gpureduce
