// The operations. All of them add an output's elements in the contract's order, and differ in what they do with the sum before
// it is rounded. Schemas, backends, autograd, vmap, autocast and the rest are registered for each row of this table.
#pragma once

#include <cstdint>

namespace gpureduce {

// Each row has a name, whether the sum is divided by the number of elements, and whether torch.autocast makes the result
// float32 on CUDA (torch lists those in AT_FORALL_FP32_SET_OPT_DTYPE).
#define GPUREDUCE_OPERATIONS(X) \
  X(sum, false, true)           \
  X(mean, true, false)

enum class Operation : uint8_t {
#define GPUREDUCE_OPERATION(name, ...) name,
  GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
};

struct OperationInfo {
  const char* name;
  bool divides, autocasts;
};

constexpr OperationInfo info(Operation op) {
  constexpr OperationInfo table[] = {
#define GPUREDUCE_OPERATION(name, divides, autocasts) {#name, divides, autocasts},
      GPUREDUCE_OPERATIONS(GPUREDUCE_OPERATION)
#undef GPUREDUCE_OPERATION
  };
  return table[static_cast<int>(op)];
}

constexpr const char* name_of(Operation op) { return info(op).name; }

// The number that a sum of `length` elements is divided by.
constexpr int64_t divisor_of(Operation op, int64_t length) { return info(op).divides ? length : 1; }

}  // namespace gpureduce
