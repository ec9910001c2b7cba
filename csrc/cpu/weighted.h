// Weighted sums on the CPU: the executable specification of their order.
#pragma once

#include "../weighted.h"

namespace gpureduce::cpu {

void run(const weighted::Reduction& reduction);

}  // namespace gpureduce::cpu
