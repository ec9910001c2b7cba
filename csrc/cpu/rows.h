// Functions that keep their input's shape, on the CPU.
#pragma once

#include "../problem/rows.h"

namespace gpureduce::cpu {

void run(const RowsCall& call);
void run(const RowWeightsCall& call);
void run(const RowStepCall& call);
void run(const RowFinishCall& call);

}  // namespace gpureduce::cpu
