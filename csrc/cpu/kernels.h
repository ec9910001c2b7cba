// The kernels of each instruction set, which carry a task of a plan out. No torch, no std: kernels.inl says why.
#pragma once

#include <utility>

#include "plan.h"

namespace gpureduce::cpu {

constexpr int64_t kExactDepth = 128;  // additions that no narrow integer of the kernels overflows in

// Writes the sums of a task's rows and columns, row by row, as accumulators. `scratch` is aligned to 64 bytes: all that is
// larger than registers lies there, as the caller's thread may have a small stack.
using Kernel = void (*)(const Plan& plan, const Task& task, void* scratch, void* sums);

// The kernel for elements of `in`, or null if there is none: an instruction set each.
namespace generic {
Kernel kernel_for(DType in, Accumulator accumulator, Map map);
}
#if defined(__x86_64__)
namespace avx2 {
Kernel kernel_for(DType in, Accumulator accumulator, Map map);
}
namespace avx512 {
Kernel kernel_for(DType in, Accumulator accumulator, Map map);
}
#endif

}  // namespace gpureduce::cpu
