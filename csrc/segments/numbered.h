// Tables whose rows are chosen by number: gathers, and formulas of elements and their segment's results. Pure C++.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/plan/numbered.h"

namespace gpureduce::cuda {

// For calls that the kernel takes(). If another number is not in [0, rows), it stops with an assertion.
GPUREDUCE_API cudaError_t copy_rows(const CopiedRows& call, cudaStream_t stream);

// Writes to which segment each of `entries` entries belongs, or -1 if to none. int32, so that there are fewer than 2^31
// segments.
GPUREDUCE_API cudaError_t number_entries(const void* offsets, bool wide, int64_t count, int64_t entries, int32_t* numbers,
                                         cudaStream_t stream);

// For calls that a kernel takes().
GPUREDUCE_API cudaError_t apply_numbered(const NumberedApply& call, cudaStream_t stream);

}  // namespace gpureduce::cuda
