// logsumexp: the outputs' largest elements m, then the sums of e^(x - m), then the logarithms.
#pragma once

#include "../core/torch/backend.h"

namespace gpureduce {

// Computes the logsumexp `r`, whose problem is not empty, on the device of `self`. `tuning` applies to the sums.
void run_logsumexp(const Reduction& r, const at::Tensor& self, const Tuning& tuning);

}  // namespace gpureduce
