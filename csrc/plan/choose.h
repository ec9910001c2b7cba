// Which of the plans that are proposed is the fastest: a guess from what was measured. The only place that speaks of speed.
#pragma once

#include <string>
#include <vector>

#include "propose.h"

namespace gpureduce {

// What is known of a plan, as numbers that mean the same on any GPU; and their names, the first of which names the kernels:
// where any of this changes, so does the text, and what was measured before is not taken for something else.
std::vector<float> features_of(const Plan& plan, const Reduction& r, const Device& device);
std::string feature_names();
int feature_count();

// The index of the plan that is taken.
size_t choose(const std::vector<Plan>& plans, const Reduction& r, const Device& device);

}  // namespace gpureduce
