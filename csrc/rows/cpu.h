// Functions that keep their input's shape, on the CPU.
#pragma once

#include "../core/api.h"
#include "../core/problem/quantize.h"

namespace gpureduce::cpu {

GPUREDUCE_API void run(const RowsCall& call);
GPUREDUCE_API void run(const RowWeightsCall& call);
GPUREDUCE_API void run(const RowStepCall& call);
GPUREDUCE_API void run(const RowFinishCall& call);
GPUREDUCE_API void run(const QuantizeCall& call);  // of elements, side by side in a row

}  // namespace gpureduce::cpu
