// How a sort by index cuts its work. Pure C++.
#pragma once

#include <string>

#include "../api.h"
#include "../problem/index.h"
#include "limits.h"
#include "plan.h"

namespace gpureduce::cuda {

constexpr int kIndexThreads = 256, kIndexAtOnce = 4;  // per block; entries per thread, whose loads are in flight together
constexpr int64_t kIndexOutputs = 1024;               // whose offsets a block writes

struct IndexPlan {
  Grid entries;  // of the kernels that take entries
  Grid offsets;
  int bits;  // that tell apart all outputs: the sort looks at no others

  GPUREDUCE_API std::string str(const Index& index) const;
};

GPUREDUCE_API IndexPlan plan_index(const Index& index);

}  // namespace gpureduce::cuda
