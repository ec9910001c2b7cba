// What the files of functions that keep their shape share (torch.cpp, torch_losses.cpp): their calls, and operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>

#include "../core/problem/rows.h"
#include "../core/torch/batch.h"
#include "../core/torch/results.h"

namespace gpureduce::rows {

using at::Tensor;

// --- calls ------------------------------------------------------------------------------------------------------------------

// The tensors of a call: x, g, weight, bias, y. Some may be undefined. Weight and bias have the rows' dims alone.
using Operands = std::array<Tensor, kRowOperands>;

// The row of its dtype. Raises NotImplementedError for complex numbers, too.
DType real_dtype(const Tensor& x, const char* function);

// The dtype that a call computes with, and that it keeps per row.
at::ScalarType computed_in(const Operands& operands);

// A call whose rows lie along all dims but `dims`. memory_order: a row's elements are added in the order of its memory, as a
// sum's; otherwise in logical order.
RowsCall make_call(RowFunction function, const Operands& operands, const DimMask& dims, const char* name,
                   bool memory_order = true);
void run(const RowsCall& call, const Tensor& like);

// A new result of the size of `like`: contiguous, as torch's are.
Tensor new_result(const Tensor& like, at::ScalarType dtype);

// Kernels are fast where the elements of a row are neighbours in memory. So large calls of another layout are computed on
// copies, or into them; small ones read and write any strides in one launch.
//
// together  x, or a contiguous copy whose rows are such neighbours. `like` has the memory order in which a row is added: where
//           that is not the logical one, x stays as it is.
// room      where the result of x is written: contiguous if the rows are neighbours there, too. What the function returns is
//           room.contiguous().
Tensor together(const Tensor& x, const DimMask& dims, const Tensor& like);
Tensor room(const Tensor& x, const DimMask& dims, at::ScalarType dtype);

// The dtype of the result of a softmax. Raises an error for dtypes that it does not take.
at::ScalarType softmax_type(const char* name, const Tensor& self, OptionalDtype dtype);

DimMask one_dim(const Tensor& self, int64_t dim);

// How many of the last dims `shape` names. Raises torch's error if the input does not end with it.
int64_t dims_of_shape(const char* name, const Tensor& input, c10::SymIntArrayRef shape);

// True if torch.autocast is on for the device of x, and widens its elements to float32 for functions that ask for it.
bool is_autocast(const Tensor& x);

inline Tensor total(const Tensor& x, at::IntArrayRef dims) {
  return functional(Operation::sum).call(x, dims, true, std::nullopt);
}

// --- operators ----------------------------------------------------------------------------------------------------------

template <bool logarithm>
constexpr const char* kSoftmax = logarithm ? "log_softmax" : "softmax";
template <bool logarithm>
constexpr const char* kSoftmaxBackward = logarithm ? "_log_softmax_backward" : "_softmax_backward";

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;
using FiveTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

template <bool logarithm>
GPUREDUCE_HANDLE(softmax_operator, kSoftmax<logarithm>, Tensor(const Tensor&, int64_t, OptionalDtype))
template <bool logarithm>
GPUREDUCE_HANDLE(softmax_backward_operator, kSoftmaxBackward<logarithm>,
                 Tensor(const Tensor&, const Tensor&, int64_t, at::ScalarType))
GPUREDUCE_HANDLE(rms_norm_operator, "_rms_norm", TwoTensors(const Tensor&, int64_t, const OptionalTensor&, double))
GPUREDUCE_HANDLE(rms_norm_backward_operator, "_rms_norm_backward",
                 TwoTensors(const Tensor&, const Tensor&, int64_t, const Tensor&, const OptionalTensor&, double,
                            std::array<bool, 2>))
GPUREDUCE_HANDLE(layer_norm_operator, "_layer_norm",
                 ThreeTensors(const Tensor&, int64_t, const OptionalTensor&, const OptionalTensor&, double))
GPUREDUCE_HANDLE(layer_norm_backward_operator, "_layer_norm_backward",
                 ThreeTensors(const Tensor&, const Tensor&, int64_t, const Tensor&, const Tensor&, const OptionalTensor&,
                              const OptionalTensor&, double, std::array<bool, 3>))
GPUREDUCE_HANDLE(log_prob_operator, "_log_prob", ThreeTensors(const Tensor&, const Tensor&, int64_t, c10::SymInt))
GPUREDUCE_HANDLE(log_prob_backward_operator, "_log_prob_backward",
                 Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, c10::SymInt, const Tensor&, const Tensor&, bool,
                        const OptionalTensor&, double, const OptionalTensor&, const OptionalTensor&))
GPUREDUCE_HANDLE(cross_entropy_operator, "_cross_entropy",
                 FiveTensors(const Tensor&, const Tensor&, const OptionalTensor&, int64_t, c10::SymInt, double,
                             const OptionalTensor&, at::ScalarType))
GPUREDUCE_HANDLE(nll_loss_operator, "_nll_loss",
                 TwoTensors(const Tensor&, const Tensor&, const OptionalTensor&, int64_t, c10::SymInt))
GPUREDUCE_HANDLE(nll_loss_backward_operator, "_nll_loss_backward",
                 Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, int64_t, c10::SymInt,
                        const Tensor&))

// torch's default: the distance from 1 to the next number of the type that it computes with.
inline double epsilon_of(at::ScalarType dtype) { return dtype == at::kDouble ? 0x1p-52 : 0x1p-23; }

}  // namespace gpureduce::rows
