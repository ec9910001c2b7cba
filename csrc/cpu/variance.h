// Variances on the CPU: the executable specification of their order.
#pragma once

#include "../variance.h"

namespace gpureduce::cpu {

void run(const variance::Reduction& reduction);

}  // namespace gpureduce::cpu
