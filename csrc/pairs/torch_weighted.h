// Two inputs that are broadcast, for all operators that add products.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

namespace gpureduce::weighted {

// The sizes that both inputs are expanded to. Data-dependent traced sizes count as equal unless one is known to be 1, as in
// torch; this is checked when they are known.
at::DimVector common_sizes(at::IntArrayRef self, at::IntArrayRef weight);
c10::SymDimVector common_sizes(c10::SymIntArrayRef self, c10::SymIntArrayRef weight);

// Raises an error of the function `name` unless both inputs are on one device.
void check_devices(const char* name, const at::Tensor& self, const at::Tensor& weight, const char* first = "input",
                   const char* second = "weight");

}  // namespace gpureduce::weighted
