// The orders of norms, and the operations for each.
#pragma once

#include <limits>
#include <optional>

#include "../operation.h"

namespace gpureduce {

// The operations for the norm and for the sum of powers, if there is one.
struct Power {
  double ord;
  std::optional<Operation> norm, powsum;
};

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr Power kPowers[] = {
    {0, Operation::_norm_0, Operation::_norm_0},     {1, Operation::_norm_1, Operation::_norm_1},
    {2, Operation::_norm_2, Operation::_powsum_2},   {3, Operation::_norm_3, Operation::_powsum_3},
    {kInfinity, Operation::_norm_inf, std::nullopt}, {-kInfinity, Operation::_norm_neg_inf, std::nullopt},
};

}  // namespace gpureduce
