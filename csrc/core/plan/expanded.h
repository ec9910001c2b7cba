// expanded: one thread per output. All elements of an output are one and the same.
#pragma once

namespace gpureduce {

struct ExpandedPlan { static constexpr const char* kName = "expanded"; };

}  // namespace gpureduce
