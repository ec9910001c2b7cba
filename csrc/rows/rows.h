// Functions that keep their input's shape, on a GPU: raw pointers and a stream in, an error code out.
#pragma once

#include <cuda_runtime_api.h>

#include "../core/api.h"
#include "../core/cuda/launch.h"
#include "../core/plan/rows.h"

namespace gpureduce::cuda {

GPUREDUCE_API cudaError_t run_rows(const RowsCall& call, const RowsPlan& plan, const Device& device, cudaStream_t stream);

// The gradients of weights; and of the input if it is wanted, whose call is `input`. The workspace is for partial sums.
GPUREDUCE_API cudaError_t run_rows(const RowsCall* input, const RowWeightsCall& weights, const RowWeightsPlan& plan,
                                   void* workspace, const Device& device, cudaStream_t stream);

// One step of a function, and the numbers of rows from their sums.
GPUREDUCE_API cudaError_t run_rows(const RowStepCall& call, cudaStream_t stream);
GPUREDUCE_API cudaError_t run_rows(const RowFinishCall& call, cudaStream_t stream);

// Rows that are rounded to float8.
GPUREDUCE_API cudaError_t run_rows(const QuantizeCall& call, const QuantizePlan& plan, const Device& device,
                                   cudaStream_t stream);

// Rows of compiled dtypes, side by side in memory.
cudaError_t run_float_rows(const RowsCall& call, const RowsPlan& plan, Queue queue);
cudaError_t run_float_rows_backward(const RowsCall& call, const RowsPlan& plan, Queue queue);
cudaError_t run_half_rows(const RowsCall& call, const RowsPlan& plan, Queue queue);
cudaError_t run_half_rows_backward(const RowsCall& call, const RowsPlan& plan, Queue queue);
cudaError_t run_bfloat16_rows(const RowsCall& call, const RowsPlan& plan, Queue queue);
cudaError_t run_bfloat16_rows_backward(const RowsCall& call, const RowsPlan& plan, Queue queue);

}  // namespace gpureduce::cuda
