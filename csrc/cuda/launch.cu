#include "launch.h"

#include <cuda/annotated_ptr>

namespace gpureduce::cuda {

bool runs_hopper_code(int capability) {
  for (int compiled : {__CUDA_ARCH_LIST__})
    if (compiled >= 900 && compiled <= 10 * capability) return true;
  return false;
}

cudaLaunchConfig_t configure(const Launch& launch, const Grid& grid, dim3 threads, int shared_bytes,
                             LaunchAttributes& attributes) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.x, grid.y, grid.z);
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute = {};
    attribute.id = id;
    return attribute.val;
  };
  if (!launch.plan.early) return config;
  // Starts while the kernel before drains.
  add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
  if (grid.cluster_x * grid.cluster_y > 1) {
    auto& cluster = add(cudaLaunchAttributeClusterDimension).clusterDim;
    cluster.x = grid.cluster_x;
    cluster.y = grid.cluster_y;
    cluster.z = 1;
    // Else a few multiprocessors get them all: (64, 128256) bfloat16 5.8 us, and 7.2.
    add(cudaLaunchAttributeClusterSchedulingPolicyPreference).clusterSchedulingPolicyPreference =
        cudaClusterSchedulingPolicyLoadBalancing;
  }
  return config;
}

uint64_t l2_policy(const Plan& plan) {
  using ::cuda::access_property;
  return static_cast<uint64_t>(plan.streams ? access_property(access_property::streaming{}) : access_property());
}

namespace {

cudaError_t reduce(const Launch& launch) {
  const Reduction& r = launch.reduction;
  if (!is_typed(r) || launch.plan.kernel == Kernel::rows) return reduce_any(launch);
  switch (r.in) {
#define GPUREDUCE_FAMILY(name, type, kind, accumulator, wide, family) \
  case DType::name: return reduce_family<Family::family>(launch);
    GPUREDUCE_DTYPES(GPUREDUCE_FAMILY)
#undef GPUREDUCE_FAMILY
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t run(const Launch& launch) {
  if (cudaError_t error = reduce(launch)) return error;
  return join(launch);
}

}  // namespace gpureduce::cuda
