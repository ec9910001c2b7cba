// Guesses the fastest of the proposed plans from measured data. No other place estimates speed.
#pragma once

#include <string>
#include <vector>

#include "../api.h"
#include "propose.h"

namespace gpureduce {

// The features of a plan: numbers that mean the same on any GPU. feature_names() also lists the kernels. It changes with any
// feature or kernel, so that older data are refused instead of misread.
GPUREDUCE_API std::vector<float> features_of(const Plan& plan, const Reduction& r, const Device& device);
GPUREDUCE_API std::string feature_names();
GPUREDUCE_API int feature_count();

// The index of the chosen plan.
size_t choose(const std::vector<Plan>& plans, const Reduction& r, const Device& device);

}  // namespace gpureduce
