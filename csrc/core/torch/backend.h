// The interface between ops and backends, and how a call becomes a Reduction. Shared by all ops, private ones too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "../plan/planner.h"
#include "dispatch.h"

namespace gpureduce {

// Up to this rank, lists with an entry per dim allocate no memory.
constexpr unsigned kCommonRank = 8;
using DimMask = c10::SmallVector<bool, kCommonRank>;

// The reduced dims as a mask; None and () mean all dims. Raises torch.sum's errors.
DimMask reduced_dims(OptionalDims dim, int64_t rank);

// The dtype of the result: `dtype`, or otherwise torch's choice (float32 for float8 sums). Raises torch's errors.
at::ScalarType result_type(Operation op, at::ScalarType input, OptionalDtype dtype);

// The dtype of the result that is written to `out`. Raises torch's errors.
at::ScalarType out_type(Operation op, const at::Tensor& self, OptionalDtype dtype, const at::Tensor& out);

// A call, as backends see it. `out` may be undefined if the call is only planned. `result` is the dtype of the result.
Reduction make_reduction(Operation op, const at::Tensor& self, const DimMask& reduce, at::ScalarType result,
                         const at::Tensor& out, bool keepdim);

// The dims of a call's inputs, in the tensors' order, with sizes and input strides; `complete` fills in the rest.
using InputDims = c10::SmallVector<InputDim, kCommonRank>;

// Sets the fields that all reductions have: problem, output and class, for a call on `device`. Without `out`, the result has
// the strides of a new contiguous tensor. `inputs` begins the error for a view of too many dims.
void complete(Reduction& reduction, InputDims& dims, const DimMask& reduce, const at::Tensor& out, bool keepdim,
              at::Device device, const char* inputs);

// True if an operation takes complex numbers.
constexpr bool takes_complex(Operation op) {
  const OperationInfo row = info(op);
  return row.combine != Combine::product && row.typing != Typing::real && row.typing != Typing::same &&
         row.typing != Typing::log;
}

// The DType of a torch dtype. If there is none, raises NotImplementedError, which names `function`, `what` and the dtypes that
// the function takes.
DType dtype_of(at::ScalarType type, const char* what, const char* function = "torch_reduce", bool complex = false);

// explained() describes a call and its plan. plans_of() counts its plans: 0 if there is nothing to read.
std::string explained(const Reduction& reduction, at::Device device, const Tuning& tuning);
int64_t plans_of(const Reduction& reduction, at::Device device);

namespace cuda {

// The driver's facts about a device. The driver is asked once.
const Device& facts(at::Device device);

// The driver's name of a device.
std::string name_of(at::Device device);

Plan plan(const Reduction& reduction, at::Device device, const Tuning& tuning);

// Launches a plan that was made with `tuning`, on the current stream of `device`, which need not be the current device. Returns
// false if there is no kernel for the reduction's map, accumulator and dtype.
bool run(const Reduction& reduction, const Plan& plan, at::Device device, const Tuning& tuning);

}  // namespace cuda

}  // namespace gpureduce
