// Sums by index as functions, for replace/.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

namespace gpureduce::indexed {

// False for numbers that this dtype does not have: torch's index_add refuses them. Infinities and NaN are numbers of floats,
// and negative ones of unsigned integers.
bool can_be_alpha(const at::Scalar& alpha, at::ScalarType type);

// As torch's functions of these names.
at::Tensor index_add(const at::Tensor& input, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                     const at::Scalar& alpha);
at::Tensor scatter_add(const at::Tensor& input, int64_t dim, const at::Tensor& index, const at::Tensor& src);
at::Tensor index_reduce(const at::Tensor& input, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                        std::string_view reduce, bool include_self);
at::Tensor scatter_reduce(const at::Tensor& input, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                          std::string_view reduce, bool include_self);
at::Tensor embedding_bag(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& offsets,
                         std::string_view mode, const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
                         std::optional<c10::SymInt> padding_idx);
at::Tensor bincount(const at::Tensor& input, const std::optional<at::Tensor>& weights, c10::SymInt minlength);

}  // namespace gpureduce::indexed
