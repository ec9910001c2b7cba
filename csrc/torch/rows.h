// What the files of functions that keep their shape share (rows.cpp, losses.cpp): their calls, and operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>

#include "../problem/rows.h"
#include "backend.h"
#include "batch.h"
#include "dispatch.h"

namespace gpureduce::rows {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// --- calls ------------------------------------------------------------------------------------------------------------------

// The tensors of a call: x, g, weight, bias, y. Some may be undefined. Weight and bias have the rows' dims alone.
using Operands = std::array<Tensor, kRowOperands>;

// The row of its dtype. Raises NotImplementedError for complex numbers, too.
DType real_dtype(const Tensor& x, const char* function);

// The dtype that a call computes with, and that it keeps per row.
at::ScalarType computed_in(const Operands& operands);

// A call whose rows lie along all dims but `dims`. in_memory_order: a row's elements are added in the order of its memory, as a
// sum's; otherwise in logical order.
RowsCall make_call(RowFunction function, const Operands& operands, const DimMask& dims, const char* name,
                   bool in_memory_order = true);
void run(const RowsCall& call, const Tensor& like);

// A result in memory as `like` lies there.
Tensor result_like(const Tensor& like, at::ScalarType dtype);

// The dtype of the result of a softmax. Raises an error for dtypes that it does not take.
at::ScalarType softmax_type(const char* name, const Tensor& self, OptionalDtype dtype);

DimMask one_dim(const Tensor& self, int64_t dim);

inline Tensor of(const OptionalTensor& x) { return x && x->defined() ? *x : Tensor(); }
inline OptionalTensor optional(const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; }

// What rows' numbers are kept as: of the dtype of the call, one after the other.
inline Tensor plain(const Tensor& numbers, at::ScalarType dtype) { return numbers.to(dtype).contiguous(); }

inline Tensor total(const Tensor& x, at::IntArrayRef dims) {
  return functional<Operation::sum>().call(x, dims, true, std::nullopt);
}

// --- operators ----------------------------------------------------------------------------------------------------------

using SoftmaxFunction = Tensor(const Tensor&, int64_t, OptionalDtype);
using SoftmaxBackward = Tensor(const Tensor&, const Tensor&, int64_t, at::ScalarType);

template <bool logarithm>
constexpr const char* kSoftmax = logarithm ? "log_softmax" : "softmax";
template <bool logarithm>
constexpr const char* kSoftmaxBackward = logarithm ? "_log_softmax_backward" : "_softmax_backward";

template <bool logarithm>
inline const c10::TypedOperatorHandle<SoftmaxFunction>& softmax_operator() {
  static const auto handle = find<SoftmaxFunction>(kSoftmax<logarithm>);
  return handle;
}
template <bool logarithm>
inline const c10::TypedOperatorHandle<SoftmaxBackward>& softmax_backward_operator() {
  static const auto handle = find<SoftmaxBackward>(kSoftmaxBackward<logarithm>);
  return handle;
}

using RmsNorm = std::tuple<Tensor, Tensor>(const Tensor&, int64_t, const OptionalTensor&, double);
using RmsNormBackward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, int64_t, const Tensor&, const OptionalTensor&,
                                                   double, std::array<bool, 2>);
using LayerNorm = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, int64_t, const OptionalTensor&, const OptionalTensor&,
                                                     double);
using LayerNormBackward = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, int64_t, const Tensor&,
                                                             const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                                             double, std::array<bool, 3>);

inline const auto& rms_norm_operator() {
  static const auto handle = find<RmsNorm>("_rms_norm");
  return handle;
}
inline const auto& rms_norm_backward_operator() {
  static const auto handle = find<RmsNormBackward>("_rms_norm_backward");
  return handle;
}
inline const auto& layer_norm_operator() {
  static const auto handle = find<LayerNorm>("_layer_norm");
  return handle;
}
inline const auto& layer_norm_backward_operator() {
  static const auto handle = find<LayerNormBackward>("_layer_norm_backward");
  return handle;
}

using LogProb = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, int64_t, c10::SymInt);
using LogProbBackward = Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, c10::SymInt, const Tensor&, const Tensor&);

inline const auto& log_prob_operator() {
  static const auto handle = find<LogProb>("_log_prob");
  return handle;
}
inline const auto& log_prob_backward_operator() {
  static const auto handle = find<LogProbBackward>("_log_prob_backward");
  return handle;
}

using NllLoss = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const OptionalTensor&, int64_t, c10::SymInt);
using NllLossBackward = Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, int64_t, c10::SymInt,
                               const Tensor&);

inline const auto& nll_loss_operator() {
  static const auto handle = find<NllLoss>("_nll_loss");
  return handle;
}
inline const auto& nll_loss_backward_operator() {
  static const auto handle = find<NllLossBackward>("_nll_loss_backward");
  return handle;
}

// torch's default: the distance from 1 to the next number of the type that it computes with.
inline double epsilon_of(at::ScalarType dtype) { return dtype == at::kDouble ? 0x1p-52 : 0x1p-23; }

}  // namespace gpureduce::rows
