// expanded: a thread takes an output, which has one element many times.
#pragma once

namespace gpureduce {

struct ExpandedPlan { static constexpr const char* kName = "expanded"; };

}  // namespace gpureduce
