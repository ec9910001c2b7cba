// Which of the plans that are proposed is the fastest: a guess from what was measured. The only place that speaks of speed.
#pragma once

#include <string>
#include <vector>

#include "propose.h"

namespace gpureduce {

// What is known of a plan, as numbers that mean the same on any GPU; and their names.
std::vector<float> features_of(const Plan& plan, const Request& request);
std::string feature_names();

// The index of the plan that is taken.
size_t choose(const Proposals& proposals);

}  // namespace gpureduce
