// The operators of rows.cpp, as the dispatcher knows them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>

#include "dispatch.h"

namespace gpureduce::rows {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

using SoftmaxFunction = Tensor(const Tensor&, int64_t, OptionalDtype);
using SoftmaxBackward = Tensor(const Tensor&, const Tensor&, int64_t, at::ScalarType);

template <bool logarithm>
constexpr const char* kSoftmax = logarithm ? "log_softmax" : "softmax";
template <bool logarithm>
constexpr const char* kSoftmaxBackward = logarithm ? "_log_softmax_backward" : "_softmax_backward";

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow((std::string("gpureduce::") + name).c_str(), "").typed<Signature>();
}
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

// torch's default: the distance from 1 to the next number of the type that it computes with.
inline double epsilon_of(at::ScalarType dtype) { return dtype == at::kDouble ? 0x1p-52 : 0x1p-23; }

}  // namespace gpureduce::rows
