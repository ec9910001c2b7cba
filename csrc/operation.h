// The operations. All of them add an output's elements in the contract's order; what they do with the sum is finished() in
// dtypes.h. Whatever is registered for an operation, is registered for each row of this table.
#pragma once

#include <cstdint>

namespace gpureduce {

#define GPUREDUCE_OPERATIONS(X) X(sum) X(mean)

enum class Operation : uint8_t {
#define GPUREDUCE_OPERATION(name) name,
  GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
};

constexpr const char* name_of(Operation op) {
  constexpr const char* names[] = {
#define GPUREDUCE_OPERATION(name) #name,
      GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
  };
  return names[static_cast<int>(op)];
}

// What the sum of `length` elements is divided by.
constexpr int64_t divisor_of(Operation op, int64_t length) { return op == Operation::mean ? length : 1; }

}  // namespace gpureduce
