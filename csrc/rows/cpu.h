// Functions that keep their input's shape, on the CPU.
#pragma once

#include "../core/api.h"
#include "../core/problem/rows.h"

namespace gpureduce::cpu {

GPUREDUCE_API void run(const RowsCall& call);
GPUREDUCE_API void run(const RowWeightsCall& call);
GPUREDUCE_API void run(const RowStepCall& call);
GPUREDUCE_API void run(const RowFinishCall& call);

}  // namespace gpureduce::cpu
