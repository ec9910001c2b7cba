// rows: the same as dense, element by element, for rows that are too many, or too long in nested dims, for 32-bit counts.
#pragma once

namespace gpureduce {

struct RowsPlan { static constexpr const char* kName = "rows"; };

}  // namespace gpureduce
