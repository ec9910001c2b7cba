// What the op asks of a device, and how a call is turned into that: shared by the op and by the private ops for tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "../plan/planner.h"
#include "dispatch.h"

namespace gpureduce {

// Lists with an entry for each dim allocate no memory up to this rank.
constexpr unsigned kCommonRank = 8;
using DimMask = c10::SmallVector<bool, kCommonRank>;

// The reduced dims as a mask; None and () mean all dims. It raises the errors that torch.sum raises.
DimMask reduced_dims(OptionalDims dim, int64_t rank);

// The dtype of the result: `dtype`, or else torch's choice (float32 for float8). It raises the errors that torch raises.
at::ScalarType result_type(Operation op, at::ScalarType input, OptionalDtype dtype);

// The dtype of the result that is written to `out`. It raises the errors that torch raises.
at::ScalarType out_type(Operation op, const at::Tensor& self, OptionalDtype dtype, const at::Tensor& out);

// The views, dtypes and flags of a call, as a backend sees them. `out` may be undefined where a call is only planned; `result`
// is then its dtype.
Reduction make_reduction(Operation op, const at::Tensor& self, const DimMask& reduce, at::ScalarType result,
                         const at::Tensor& out, bool keepdim);

// The dims of a call's inputs, slowest first, with the strides of one element of each; `complete` fills in the rest.
using InputDims = c10::SmallVector<InputDim, kCommonRank>;

// Fills in what all reductions have in common: the problem, the result and the class, for a call on `device`. Without `out`,
// the strides are a new contiguous result's. `inputs` begins the error that a view of too many dims raises.
void complete(Reduction& reduction, InputDims& dims, const DimMask& reduce, const at::Tensor& out, bool keepdim,
              at::Device device, const char* inputs);

// The row of a dtype in dtypes.h. Raises NotImplementedError, which names the function and `what`, if there is none.
DType dtype_of(at::ScalarType type, const char* what, const char* function = "torch_reduce");

// A call and its plan, for people. And how many plans it has; none where there is nothing to read.
std::string explained(const Reduction& reduction, at::Device device, const Tuning& tuning);
int64_t plans_of(const Reduction& reduction, at::Device device);

namespace cuda {

// What the driver says about a device. It is asked once.
const Device& facts(at::Device device);

// The name of a device, as the driver has it.
std::string name_of(at::Device device);

Plan plan(const Reduction& reduction, at::Device device, const Tuning& tuning);

// Launches a plan that was made with `tuning`, on the current stream of `device`, which need not be the current device. Returns
// whether there is a kernel for the reduction's map, accumulator and dtype.
bool run(const Reduction& reduction, const Plan& plan, at::Device device, const Tuning& tuning);

}  // namespace cuda

}  // namespace gpureduce
