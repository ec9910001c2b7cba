// The C++ interface of the CUDA kernels: raw pointers, a plan and a stream in; an error code out.
#pragma once

#include <cuda_runtime_api.h>

#include "../api.h"
#include "../plan/plan.h"
#include "../plan/units.h"

namespace gpureduce {
struct Device;
}

namespace gpureduce::cuda {

// There is no kernel for a reduction's map, accumulator and dtype. CUDA itself never returns this error.
constexpr cudaError_t kNoKernel = cudaErrorNotYetImplemented;

// How kernels are put into a stream.
struct Queue {
  cudaStream_t stream;
  bool early;            // kernels can start while the previous one drains
  bool follows = false;  // the previous kernel is of the same call

  Queue next() const { return {stream, early, true}; }
};

struct Launch {
  const Reduction& reduction;
  const Plan& plan;
  void* workspace;   // plan.workspace_bytes
  int shared_bytes;  // the most shared memory of a block on this device
  cudaStream_t stream;

  Queue queue() const { return {stream, plan.early}; }
};

// Starts the plan's kernel: one of a unit (plan/units.h), or one that converts each element at run time.
template <Unit unit>
cudaError_t launch_unit(const Launch& launch);
cudaError_t launch_converted(const Launch& launch);

// The same for weighted sums, variances and sums of exponentials. launch_products(), launch_deviations() and launch_exponents()
// take all of them; the others take compiled dtypes, by the first input's.
cudaError_t launch_products(const Launch& launch);
cudaError_t launch_products_of_floats(const Launch& launch);
cudaError_t launch_products_of_halves(const Launch& launch);
cudaError_t launch_products_of_wholes(const Launch& launch);  // float64 and int32
cudaError_t launch_deviations(const Launch& launch);
cudaError_t launch_deviations_typed(const Launch& launch);
cudaError_t launch_exponents(const Launch& launch);
cudaError_t launch_exponents_typed(const Launch& launch);
cudaError_t launch_indices(const Launch& launch);
cudaError_t launch_indices_typed(const Launch& launch);

// A kernel for questions to the driver. All kernels on a GPU are compiled for the same architecture, and no block of another
// kernel takes more of a multiprocessor than a block of this one with 1024 threads and all of the shared memory.
const void* any_kernel();

// A kernel without PTX: the driver finds it only if the library's machine code fits the GPU.
const void* native_kernel();

// Joins the partial sums in the workspace, pass by pass, and writes the result.
cudaError_t join(const Launch& launch);

// Asks the driver about the current device.
GPUREDUCE_API cudaError_t ask(Device& device);

// `attributes` must live until the launch.
using LaunchAttributes = cudaLaunchAttribute[3];
cudaLaunchConfig_t configure(Queue queue, const Grid& grid, dim3 threads, int shared_bytes, LaunchAttributes& attributes);

#ifdef __CUDACC__
// Starts a kernel of one argument by its address.
template <class Args>
cudaError_t start_address(Queue queue, const Grid& grid, dim3 threads, int shared_bytes, const void* kernel, Args& args) {
  LaunchAttributes attributes;
  const cudaLaunchConfig_t config = configure(queue, grid, threads, shared_bytes, attributes);
  void* arguments[] = {&args};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}
template <class... Args>
cudaError_t start_kernel(Queue queue, const Grid& grid, dim3 threads, int shared_bytes, void (*kernel)(Args...),
                         const Args&... args) {
  LaunchAttributes attributes;
  const cudaLaunchConfig_t config = configure(queue, grid, threads, shared_bytes, attributes);
  return cudaLaunchKernelEx(&config, kernel, args...);
}
#endif

// The L2 policy, an operand of loads: a streamed input is evicted first; otherwise it is the default.
uint64_t l2_policy(bool streams = false);

// Runs the plan's kernel, then the joins.
GPUREDUCE_API cudaError_t run(const Launch& launch);

}  // namespace gpureduce::cuda
